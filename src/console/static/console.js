// What only a script can do: ask a passkey, and notice changes. Every text goes in as text, never as HTML.
'use strict';
const one = (name, under = document) => under.querySelector(`[${name}]`);
const all = (name, under = document) => [...under.querySelectorAll(`[${name}]`)];
const say = (text, good = false, at = one('data-said')) => {
  at.textContent = text;
  at.className = `said ${good ? 'good' : 'bad'}`;
};
const post = async (path, body) => {
  const headers = { 'content-type': 'application/json', accept: 'application/json' };
  const response = await fetch(path, { method: 'POST', headers, body: JSON.stringify(body) });
  const answer = await response.json().catch(() => ({ error: `the service does not answer (${response.status})` }));
  if (response.status === 401 && one('data-form-token')) location.assign('/sign-in');
  if (answer.error) throw new Error(answer.error);
  return answer;
};
const bytes = (text) => Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), (it) => it.charCodeAt(0));
const base64 = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)))
  .replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
// Browsers before 2025 lack the helpers for JSON.
const withId = (it) => it && { ...it, id: bytes(it.id) };
const withBytes = ({ challenge, user, allowCredentials, excludeCredentials, ...rest }) => ({
  ...rest, challenge: bytes(challenge), user: withId(user),
  allowCredentials: allowCredentials?.map(withId), excludeCredentials: excludeCredentials?.map(withId),
});
const toGet = (options) => PublicKeyCredential.parseRequestOptionsFromJSON?.(options) ?? withBytes(options);
const toCreate = (options) => PublicKeyCredential.parseCreationOptionsFromJSON?.(options) ?? withBytes(options);
const assertion = async (options) => {
  const { rawId, response } = await navigator.credentials.get({ publicKey: toGet(options) });
  const names = ['authenticatorData', 'clientDataJSON', 'signature', 'userHandle'];
  return { id: base64(rawId), response: Object.fromEntries(names.map((it) => [it, response[it] && base64(response[it])])) };
};

// Runs something once at a time, and tells what went wrong.
const on = (button, work) => button?.addEventListener('click', async () => {
  if (!window.PublicKeyCredential) return say('This browser has no passkeys.');
  button.disabled = true;
  say('');
  await Promise.resolve().then(work).catch(({ name, message }) => say(name === 'NotAllowedError'
    ? 'Your passkey was not used: cancelled, too late, or none that fits.' : message));
  button.disabled = false;
});
on(one('data-sign-in'), async () => {
  const { publicKey, token } = await post('/sign-in/begin', {});
  location.assign((await post('/sign-in', { token, credential: await assertion(publicKey) })).next);
});

// The link is a secret: it does not stay in the address bar, where histories and extensions read it.
let link = '';
const takeLink = () => {
  if (!one('data-enrol') || !location.hash) return;
  link = location.hash.slice(1);
  history.replaceState(null, '', '/enrol');
};
takeLink();
addEventListener('hashchange', takeLink);
on(one('data-enrol-start'), async () => {
  const { keyName, publicKey } = await post('/enrol/begin', { link });
  const { rawId, response } = await navigator.credentials.create({ publicKey: toCreate(publicKey) });
  const made = response.getPublicKey();
  if (!made) throw new Error('This passkey is of a kind that approves nothing here.');
  const backupEligible = (new Uint8Array(response.getAuthenticatorData())[32] & 8) !== 0;
  const passkey = { keyName, credentialId: base64(rawId), publicKey: base64(made), backupEligible };
  const credential = await assertion((await post('/enrol/prove', passkey)).publicKey);
  const done = await post('/enrol', { link, passkey, credential });
  [one('data-line').value, one('data-words').textContent] = [done.line, done.words];
  [one('data-enrol').hidden, one('data-enrolled').hidden] = [true, false];
});

const form = one('data-gestures');
const gesture = async (path, begin) => {
  const form_token = form.dataset.formToken;
  let begun = await post(`${path}/begin`, { form_token, ...begin });
  if (begun.question && !confirm(begun.question)) return;
  if (begun.question) begun = await post(`${path}/begin`, { form_token, ...begin, meant: true });
  const { results } = await post(path, { form_token, ...begun.form, credential: await assertion(begun.publicKey) });
  const outcome = (uuid) => one('data-outcome', one(`data-request="${CSS.escape(uuid)}"`));
  results.forEach(({ uuid, done, text }) => say(text, done, outcome(uuid)));
  one('data-actions').hidden = true;
  say(`${results.filter((it) => it.done).length} of ${results.length} done`, results.every((it) => it.done));
};
if (form) {
  const requests = all('data-request', form);
  // What was shown goes along: a gesture is refused when the request has become another one since.
  const shown = (it) => ({ uuid: it.dataset.request, shown: it.dataset.shown });
  on(one('data-approve', form), () => gesture('/approve', {
    items: requests.map((it) => ({ ...shown(it), fee: one('data-fee', it)?.value ?? '' })),
  }));
  // Where requests of several vaults are shown, there is a button for each vault.
  all('data-reject', form).forEach((button) => on(button, () => gesture('/reject', {
    items: requests.filter((it) => [undefined, '', it.dataset.vault].includes(button.dataset.reject)).map(shown),
    reason: one('data-reason', form).value,
  })));
  form.addEventListener('submit', (event) => event.preventDefault());
}
// One field for the fees of all payments on a chain.
for (const place of all('data-fee-all')) {
  const [field, fees] = [one('type', place), all('data-fee', form).filter((it) => it.dataset.fee === place.dataset.feeAll)];
  field.addEventListener('input', () => fees.forEach((it) => { it.value = field.value; }));
  place.hidden = false;
}
const chooseAll = one('data-choose-all');
if (chooseAll) one('data-all').hidden = false;
chooseAll?.addEventListener('change', () => all('name=uuid').forEach((box) => { box.checked = chooseAll.checked; }));
for (const time of all('datetime')) {
  time.title = time.textContent;
  time.textContent = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' });
}

// A page notices that what it shows has changed. Nothing is taken away from a person who is choosing or reading: only a list that
// nobody has touched loads again, and one that changes all the time stands still long enough to be read.
const live = one('data-live');
let events, retry, silence, again;
const tell = () => { live.hidden = false; };
// A page that nobody looks at must not keep its session alive.
const note = () => { sessionStorage.used = Date.now(); };
const isKept = () => form || document.querySelector('input:checked') || Date.now() - sessionStorage.used > 20 * 60_000;
const after = (work) => (isKept() ? tell() : work());
const changed = () => after(() => { again ??= setTimeout(after, 10_000 - performance.now(), () => location.reload()); });
const hears = () => { silence = clearTimeout(silence); };
// From the first moment on: each try to connect again fails by itself.
const waits = () => { silence ??= setTimeout(tell, 15_000); };
const listen = () => {
  events?.close();
  hears(clearTimeout(retry));
  // A browser has few connections to one place: a page that nobody sees holds none.
  if (document.hidden) return;
  events = new EventSource(live.dataset.events ?? '/events');
  waits();
  for (const [kind, work] of [['open', hears], ['changed', changed]]) events.addEventListener(kind, work);
  // What has come between the page and the stream.
  events.addEventListener('pending', ({ data }) => (live.dataset.pending ?? data) === data || changed());
  events.addEventListener('error', () => {
    waits();
    // An answer that is no stream ends it for good.
    if (events.readyState !== EventSource.CLOSED) return;
    tell();
    retry = setTimeout(listen, 10_000 + Math.random() * 20_000);
  });
};
if (live) {
  ['keydown', 'pointerdown'].forEach((kind) => addEventListener(kind, note));
  if (!sessionStorage.used) note();
  document.addEventListener('visibilitychange', () => {
    // Pages without a mark cannot tell what came while nobody saw them.
    if (!document.hidden && !('pending' in live.dataset)) tell();
    listen();
  });
  listen();
}
