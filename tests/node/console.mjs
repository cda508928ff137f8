// People with a real browser: Debian's Chromium, a context and a virtual authenticator (CDP, WebAuthn domain) each.
// Reads one JSON command per line, and answers each with one line.
import { createInterface } from 'node:readline';
import { generateKeyPairSync } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import axe from 'axe-core';
import { chromium } from 'playwright-core';

const [origin, pictures] = process.argv.slice(2);
mkdirSync(pictures, { recursive: true });
const browser = await chromium.launch({
  executablePath: '/usr/bin/chromium',
  // Tests run as root, and in containers with a small /dev/shm.
  args: ['--no-sandbox', '--disable-dev-shm-usage'],
});
const people = new Map();

const person = async (who) => {
  if (people.has(who)) return people.get(who);
  const context = await browser.newContext({ viewport: { width: 1000, height: 800 } });
  const page = await context.newPage();
  const problems = [];
  page.on('response', (answer) => {
    if (answer.request().isNavigationRequest() && answer.frame() === page.mainFrame()) statuses.set(page, answer.status());
  });
  page.on('console', (line) => {
    if (line.type() === 'error') problems.push(line.text());
  });
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('dialog', (dialog) => { problems.push(`a script ran: ${dialog.message()}`); dialog.dismiss(); });
  const cdp = await context.newCDPSession(page);
  await cdp.send('WebAuthn.enable');
  const { authenticatorId } = await cdp.send('WebAuthn.addVirtualAuthenticator', {
    options: {
      protocol: 'ctap2', transport: 'internal', hasResidentKey: true, hasUserVerification: true,
      isUserVerified: true, automaticPresenceSimulation: true,
    },
  });
  const made = { context, page, cdp, authenticatorId, problems };
  people.set(who, made);
  return made;
};

const said = async (page) => {
  const line = page.locator('[data-said]');
  await page.waitForFunction(() => document.querySelector('[data-said]').textContent !== '', undefined, { timeout: 20_000 });
  return line.textContent();
};

// Another tab of a person: the same session, and the same passkeys, which belong to a page here.
const anotherTab = async ({ context, cdp, authenticatorId }) => {
  const page = await context.newPage();
  const session = await context.newCDPSession(page);
  await session.send('WebAuthn.enable');
  const added = await session.send('WebAuthn.addVirtualAuthenticator', {
    options: {
      protocol: 'ctap2', transport: 'internal', hasResidentKey: true, hasUserVerification: true,
      isUserVerified: true, automaticPresenceSimulation: true,
    },
  });
  const { credentials } = await cdp.send('WebAuthn.getCredentials', { authenticatorId });
  for (const credential of credentials) {
    await session.send('WebAuthn.addCredential', { authenticatorId: added.authenticatorId, credential });
  }
  return page;
};

const fillFees = async (page, fee) => {
  for (const field of await page.locator('[data-fee]').all()) {
    if ((await field.inputValue()) === '') await field.fill(fee);
  }
};

// What became of the requests of the page, and of all.
const outcome = async (page) => ({
  said: await said(page),
  outcomes: await page.locator('[data-outcome]').allTextContents(),
});

// The paths of what axe has looked at, and how each page was answered: what refuses is not the page of its path.
const inspected = new Set();
const statuses = new WeakMap();

// The page in light and dark, from wide to 390 px: what is wider than its place, and what axe finds hard to use. Without a path
// the page stays as it is.
const inspect = async (page, name, path) => {
  const wider = [];
  const serious = [];
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    for (const width of [1920, 1000, 700, 390]) {
      await page.setViewportSize({ width, height: 800 });
      if (path) await page.goto(`${origin}${path}`);
      // Tables, too: what one has to scroll for is not seen.
      const over = await page.evaluate(() => Math.max(document.documentElement.scrollWidth - window.innerWidth,
        ...[...document.querySelectorAll('.wide')].map((it) => it.scrollWidth - it.clientWidth)));
      if (over > 0) wider.push(`${name} ${width}: ${over}`);
      // Times are in the reader's zone, with UTC on hover.
      const times = await page.locator('time').evaluateAll((all) => all.filter((it) => !/^\d{4}-\d\d-\d\d \d\d:\d\d UTC$/.test(it.title)).length);
      if (times > 0) wider.push(`${name}: ${times} times without UTC on hover`);
      if (![1000, 390].includes(width)) continue;
      await page.screenshot({ path: `${pictures}/${name}-${colorScheme}-${width}.png`, fullPage: true });
      await page.evaluate(axe.source);
      const { violations } = await page.evaluate(() => window.axe.run());
      for (const { id, impact, nodes } of violations) {
        if (['serious', 'critical'].includes(impact)) serious.push(`${name} ${colorScheme} ${width} ${id}: ${nodes[0].html}`);
      }
    }
  }
  await page.setViewportSize({ width: 1000, height: 800 });
  if (statuses.get(page) === 200) inspected.add(new URL(page.url()).pathname);
  return { wider, serious };
};

// Presses Tab until what has the focus is this.
const tabTo = async (page, selector) => {
  for (let tabs = 0; tabs < 80; tabs += 1) {
    await page.keyboard.press('Tab');
    if (await page.evaluate((it) => document.activeElement.matches(it), selector)) return;
  }
  throw new Error(`${selector} is not reached by the keyboard`);
};

const commands = {
  async enrol({ who, link }) {
    const { page } = await person(who);
    await page.goto(link);
    await page.getByRole('button', { name: 'Make a passkey' }).click();
    const done = page.locator('[data-enrolled]');
    await done.waitFor({ state: 'visible', timeout: 20_000 }).catch(async () => { throw new Error(await said(page)); });
    return {
      line: await page.locator('[data-line]').inputValue(),
      words: await page.locator('[data-words]').textContent(),
    };
  },
  // One that the tests know: they are in the policy of the signers before there is a browser.
  async addPasskey({ who, credential }) {
    const { cdp, authenticatorId } = await person(who);
    const added = { ...credential, isResidentCredential: true, signCount: 0 };
    await cdp.send('WebAuthn.addCredential', { authenticatorId, credential: added });
    return {};
  },
  // The id of another person's passkey with another key; or their passkey, as it is kept for another site.
  async forge({ who, of, rpId }) {
    const owner = await person(of);
    const { credentials } = await owner.cdp.send('WebAuthn.getCredentials', { authenticatorId: owner.authenticatorId });
    const { cdp, authenticatorId } = await person(who);
    await cdp.send('WebAuthn.clearCredentials', { authenticatorId });
    const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    const forged = privateKey.export({ type: 'pkcs8', format: 'der' }).toString('base64');
    const credential = { ...credentials[0], ...(rpId ? { rpId } : { privateKey: forged }) };
    await cdp.send('WebAuthn.addCredential', { authenticatorId, credential });
    return {};
  },
  // What the page says that does not let somebody in; the console's own, or the same at another origin.
  async refusedSignIn({ who, at }) {
    const { page } = await person(who);
    await page.goto(`${at ?? origin}/sign-in`);
    await page.getByRole('button', { name: 'Sign in with a passkey' }).click();
    return { said: await said(page), url: page.url() };
  },
  // Somebody puts a session of their own into the browser before its person signs in.
  async signInPlanted({ who, from }) {
    const { page, context } = await person(who);
    await context.clearCookies();
    await page.goto(`${origin}/sign-in`);
    const planted = await (await person(from)).context.cookies();
    await context.addCookies(planted);
    const there = await context.cookies();
    await page.getByRole('button', { name: 'Sign in with a passkey' }).click();
    await page.waitForURL(`${origin}/`, { timeout: 20_000 });
    const cookies = await context.cookies();
    return { planted: there.map((it) => it.value), now: cookies.map((it) => it.value) };
  },
  async backAfterSignOut({ who, path }) {
    const { page } = await person(who);
    await page.goto(`${origin}${path}`);
    await page.getByRole('button', { name: 'Sign out' }).first().click();
    await page.waitForURL(`${origin}/sign-in`);
    await page.goBack();
    return { url: page.url(), text: await page.locator('main').innerText() };
  },
  async approveByKeys({ who, uuid, fee }) {
    const { page } = await person(who);
    await page.goto(`${origin}/requests/${uuid}`);
    await tabTo(page, '[data-fee]');
    // Without one it is what the page offers.
    if (fee) {
      await page.keyboard.press('Control+A');
      await page.keyboard.type(fee);
    }
    await tabTo(page, '[data-approve]');
    await page.keyboard.press('Enter');
    return outcome(page);
  },
  async rejectByKeys({ who, uuid, reason }) {
    const { page } = await person(who);
    await page.goto(`${origin}/requests/${uuid}`);
    await tabTo(page, '[data-reason]');
    await page.keyboard.type(reason);
    await tabTo(page, '[data-reject]');
    await page.keyboard.press('Enter');
    return outcome(page);
  },
  // From the list of batches to the request that pays one: upload, check, make, and approve the batch.
  async batchByKeys({ who, vault, file, duplicates }) {
    const { page } = await person(who);
    const press = async (selector, key = 'Enter') => {
      await page.locator(selector).first().waitFor({ timeout: 20_000 });
      await tabTo(page, selector);
      await page.keyboard.press(key);
    };
    await page.goto(`${origin}/batches?vault=${vault}`);
    await press('a.button[href^="/batches/new"]');
    await page.waitForURL(/batches\/new/);
    const chooser = page.waitForEvent('filechooser');
    await press('input[type=file]');
    await (await chooser).setFiles({ name: 'salaries.csv', mimeType: 'text/csv', buffer: Buffer.from(file) });
    await press('form[action="/batches/check"] button');
    await page.waitForURL(/batches\/check/);
    const looked = await inspect(page, 'batch-checked-duplicates');
    if (looked.wider.length + looked.serious.length > 0) throw new Error(JSON.stringify(looked));
    const checked = await page.locator('main').innerText();
    if (duplicates) await press('input[name=duplicates]', 'Space');
    await press('form[action="/batches"] button');
    await press('form[action$="/approve"] button');
    await page.locator('main a[href^="/requests/"]').first().waitFor({ timeout: 20_000 });
    const path = new URL(page.url()).pathname;
    await press('main a[href^="/requests/"]');
    await page.waitForURL(/requests/);
    return { checked, path, request: new URL(page.url()).pathname.split('/').pop() };
  },
  async refusedLink({ who, link }) {
    const { page } = await person(who);
    await page.goto(`${origin}/sign-in`);
    await page.goto(link);
    await page.getByRole('button', { name: 'Make a passkey' }).click();
    return { said: await said(page) };
  },
  // By the keyboard alone.
  async signIn({ who }) {
    const { page, context } = await person(who);
    await page.goto(`${origin}/sign-in`);
    const button = page.getByRole('button', { name: 'Sign in with a passkey' });
    for (let tabs = 0; tabs < 20 && !(await button.evaluate((it) => it === document.activeElement)); tabs += 1) {
      await page.keyboard.press('Tab');
    }
    await page.keyboard.press('Enter');
    await page.waitForURL(`${origin}/`, { timeout: 20_000 });
    const cookies = await context.cookies();
    return { title: await page.title(), cookies };
  },
  async open({ who, path }) {
    const { page } = await person(who);
    const answer = await page.goto(`${origin}${path}`);
    return { status: answer.status(), url: page.url(), title: await page.title(), text: await page.locator('main').innerText() };
  },
  // What a page shows of a request, with the words to compare, which may be folded away.
  async compare({ who, path }) {
    const { page } = await person(who);
    await page.goto(`${origin}${path}`);
    return { text: await page.locator('main').innerText(), words: await page.locator('.words').textContent() };
  },
  async approve({ who, uuids, fee }) {
    const { page } = await person(who);
    const query = uuids.map((uuid) => `uuid=${uuid}`).join('&');
    await page.goto(uuids.length === 1 ? `${origin}/requests/${uuids[0]}` : `${origin}/requests?${query}`);
    await fillFees(page, fee);
    await page.getByRole('button', { name: /^Approve/ }).click();
    return outcome(page);
  },
  // A page with texts of others: all of its text, also what lists of choices have; what was made of it; and what scripts said.
  async texts({ who, path }) {
    const { page, problems } = await person(who);
    await page.goto(`${origin}${path}`);
    const found = await page.evaluate(() => ({
      text: document.documentElement.textContent,
      values: [...document.querySelectorAll('input, textarea')].map((it) => it.value),
      elements: document.querySelectorAll('main img, main script, main iframe, main svg').length,
    }));
    return { ...found, html: await page.content(), problems };
  },
  // That a script which turns a text into HTML would be noticed: what was.
  async provoke({ who, html }) {
    const { page, problems } = await person(who);
    await page.goto(`${origin}/account`);
    // What other pages have caused stays for who looks next.
    const before = problems.length;
    await page.evaluate((it) => { try { document.body.insertAdjacentHTML('beforeend', it); } catch { /* refused */ } }, html);
    await page.evaluate(() => new Promise((resolve) => { setTimeout(resolve, 200); }));
    return { noticed: problems.splice(before) };
  },
  async inspected() {
    return { paths: [...inspected] };
  },
  // Chosen with the box for all of them; the highest fee in the one field that there is for all payments on a chain.
  async approveChosen({ who, fee }) {
    const { page } = await person(who);
    await page.goto(`${origin}/`);
    await page.getByRole('checkbox', { name: 'all', exact: true }).check();
    await page.getByRole('button', { name: 'Look at the chosen ones' }).click();
    if (fee) await page.getByLabel('Highest network fee of each').fill(fee);
    const fees = await page.locator('[data-fee]').evaluateAll((fields) => fields.map((it) => it.value));
    await page.getByRole('button', { name: /^Approve/ }).click();
    return { ...(await outcome(page)), fees };
  },
  // A fee that is far above what the chain asks for: not meant when asked, and then meant.
  async farFee({ who, uuid, fee }) {
    const page = await anotherTab(await person(who));
    await page.goto(`${origin}/requests/${uuid}`);
    await page.locator('[data-fee]').fill(fee);
    const asked = [];
    const press = async (means) => {
      const dialog = page.waitForEvent('dialog').then(async (it) => {
        asked.push(it.message());
        await (means ? it.accept() : it.dismiss());
      });
      await Promise.all([dialog, page.getByRole('button', { name: /^Approve/ }).click()]);
    };
    await press(false);
    const refused = await page.locator('[data-outcome]').allTextContents();
    await press(true);
    const done = { ...(await outcome(page)), asked, refused };
    await page.close();
    return done;
  },
  async reject({ who, uuid, reason }) {
    const { page } = await person(who);
    await page.goto(`${origin}/requests/${uuid}`);
    await page.getByLabel('Reason to reject').fill(reason);
    await page.getByRole('button', { name: /^Reject/ }).click();
    return outcome(page);
  },
  // Opens the page of a request now, and approves it when told to.
  async look({ who, uuid }) {
    const { page } = await person(who);
    await page.goto(`${origin}/requests/${uuid}`);
    return {};
  },
  async press({ who }) {
    const { page } = await person(who);
    await page.getByRole('button', { name: /^Approve/ }).click();
    return outcome(page);
  },
  // Two tabs show the same request, and both approve it.
  async twoTabs({ who, uuid, fee }) {
    const known = await person(who);
    const tabs = [await anotherTab(known), await anotherTab(known)];
    const said = [];
    for (const page of tabs) await page.goto(`${origin}/requests/${uuid}`);
    for (const page of tabs) {
      await fillFees(page, fee);
      await page.getByRole('button', { name: /^Approve/ }).click();
      said.push(await outcome(page));
    }
    for (const page of tabs) await page.close();
    return { said };
  },
  // A browser whose clock is an hour off approves.
  async withClock({ who, uuid, fee, offMs }) {
    const page = await anotherTab(await person(who));
    await page.clock.setFixedTime(Date.now() + offMs);
    await page.goto(`${origin}/requests/${uuid}`);
    await fillFees(page, fee);
    await page.getByRole('button', { name: /^Approve/ }).click();
    const done = await outcome(page);
    await page.close();
    return done;
  },
  // Approved, on to the inbox, and back.
  async back({ who, uuid }) {
    const { page } = await person(who);
    await page.goto(`${origin}/requests/${uuid}`);
    const before = await page.getByRole('button', { name: /^Approve/ }).count();
    await fillFees(page, '0.001');
    await page.getByRole('button', { name: /^Approve/ }).click();
    const done = await outcome(page);
    await page.getByRole('link', { name: 'Inbox' }).click();
    await page.waitForURL(`${origin}/`);
    await page.goBack();
    await page.waitForURL(`${origin}/requests/${uuid}`);
    const offered = await page.getByRole('button', { name: /^Approve/ }).filter({ visible: true }).count();
    return { before, done, offered };
  },
  // A file that a link downloads.
  async download({ who, path }) {
    const { page } = await person(who);
    await page.goto(`${origin}${path}`);
    const download = page.waitForEvent('download');
    await page.getByRole('link', { name: 'Export as CSV' }).click();
    const file = await (await download).createReadStream();
    let text = '';
    for await (const part of file) text += part;
    return { name: (await download).suggestedFilename(), text };
  },
  // From the top of a page to its main content, by the keyboard alone.
  async tabTo({ who, path, name }) {
    const { page } = await person(who);
    await page.goto(`${origin}${path}`);
    for (let tabs = 1; tabs < 60; tabs += 1) {
      await page.keyboard.press('Tab');
      const here = await page.evaluate(() => document.activeElement.textContent.trim());
      if (here.startsWith(name)) return { tabs };
    }
    return { tabs: 0 };
  },
  // When something is first seen, in milliseconds from when the page is asked for, on a line of so many bytes per second, with
  // nothing kept from before; and how many bytes come.
  async firstPaint({ who, path, bytesPerSecond, times }) {
    const { page, cdp } = await person(who);
    await cdp.send('Network.enable');
    await cdp.send('Network.setCacheDisabled', { cacheDisabled: true });
    await cdp.send('Network.emulateNetworkConditions', {
      offline: false, latency: 0, downloadThroughput: bytesPerSecond, uploadThroughput: bytesPerSecond,
    });
    const ms = [];
    let bytes = 0;
    for (let time = 0; time < times; time += 1) {
      await page.goto(`${origin}${path}`);
      ms.push(await page.evaluate(() => new Promise((resolve) => {
        const look = (list) => list.getEntriesByName('first-contentful-paint').forEach((it) => resolve(it.startTime));
        new PerformanceObserver(look).observe({ type: 'paint', buffered: true });
      })));
      bytes = await page.evaluate(() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
        .reduce((sum, it) => sum + it.transferSize, 0));
    }
    return { ms, bytes };
  },
  // The inbox loads again by itself.
  async waitForTitle({ who, title }) {
    const { page } = await person(who);
    await page.waitForFunction((it) => document.title.startsWith(it), title, { timeout: 20_000 });
    return {};
  },
  // Without a device that knows its user.
  async verified({ who, isUserVerified }) {
    const { cdp, authenticatorId } = await person(who);
    await cdp.send('WebAuthn.setUserVerified', { authenticatorId, isUserVerified });
    return {};
  },
  // Another page on this machine sends what a form of the console would.
  async attack({ who, page: address, path }) {
    const { context } = await person(who);
    const page = await context.newPage();
    await page.goto(address);
    const answer = page.waitForResponse((it) => it.url() === `${origin}${path}`);
    await page.evaluate(([to]) => {
      const form = document.createElement('form');
      form.method = 'post';
      form.action = to;
      document.body.append(form);
      form.submit();
    }, [`${origin}${path}`]);
    const status = (await answer).status();
    const { cookie } = await (await answer).request().allHeaders();
    await page.close();
    return { status, cookie: cookie ?? '' };
  },
  // The page in light and dark, wide and 390 px; what is wider than the window, what axe finds hard to use, and what scripts
  // said.
  async picture({ who, path, name }) {
    const { page, problems } = await person(who);
    return { ...(await inspect(page, name, path)), problems };
  },
  // A batch payment of a file: with mistakes, mended in the page, made, and approved.
  async batch({ who, vault, bad, good }) {
    const { page } = await person(who);
    const main = page.locator('main');
    await page.goto(`${origin}/batches/new?vault=${vault}`);
    await page.getByLabel('File', { exact: true }).setInputFiles({ name: 'salaries.csv', mimeType: 'text/csv', buffer: Buffer.from(bad) });
    await page.getByRole('button', { name: 'Check' }).click();
    await page.getByText('Nothing was created').waitFor({ timeout: 20_000 });
    const mistakes = await main.innerText();
    const first = await inspect(page, 'batch-mistakes');
    await page.getByLabel('Or its rows as text').fill(good);
    await page.getByRole('button', { name: 'Check' }).click();
    const make = page.getByRole('button', { name: 'Make the batch payment' });
    await make.waitFor({ timeout: 20_000 });
    const second = await inspect(page, 'batch-checked');
    await make.click();
    const approve = page.getByRole('button', { name: 'Approve the batch' });
    await approve.waitFor({ timeout: 20_000 });
    const made = await main.innerText();
    const third = await inspect(page, 'batch-made');
    await approve.click();
    await page.getByText('on its way').waitFor({ timeout: 20_000 });
    const path = new URL(page.url()).pathname;
    const request = await page.locator('main a[href^="/requests/"]').first().getAttribute('href');
    const looked = [first, second, third];
    return {
      mistakes, made, path, request: request.split('/').pop(),
      wider: looked.flatMap((it) => it.wider), serious: looked.flatMap((it) => it.serious),
    };
  },
  // A batch payment of a token from a file in the token's smallest unit: checked, made and approved.
  async tokenBatch({ who, vault, token, file }) {
    const { page } = await person(who);
    const main = page.locator('main');
    await page.goto(`${origin}/batches/new?vault=${vault}`);
    await page.getByLabel('Token: contract').fill(token);
    await page.getByLabel('Amounts of the file are in').selectOption('smallest');
    await page.getByLabel('File', { exact: true }).setInputFiles({ name: 'salaries.csv', mimeType: 'text/csv', buffer: Buffer.from(file) });
    const began = Date.now();
    await page.getByRole('button', { name: 'Check' }).click();
    const make = page.getByRole('button', { name: 'Make the batch payment' });
    await make.waitFor({ timeout: 20_000 });
    const checkedMs = Date.now() - began;
    const checked = await main.innerText();
    await make.click();
    await page.getByRole('button', { name: 'Approve the batch' }).click();
    await page.locator('main a[href^="/requests/"]').first().waitFor({ timeout: 20_000 });
    return { checked, checkedMs, path: new URL(page.url()).pathname };
  },
  async withoutScript({ who, path }) {
    const { context } = await person(who);
    const bare = await browser.newContext({ javaScriptEnabled: false });
    await bare.addCookies(await context.cookies());
    const page = await bare.newPage();
    const answer = await page.goto(`${origin}${path}`);
    const text = await page.locator('main').innerText();
    await bare.close();
    return { status: answer.status(), text };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { ask, ...rest } = JSON.parse(line);
  try {
    console.log(JSON.stringify(await commands[ask](rest)));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
await browser.close();
