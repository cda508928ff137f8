// What only a script can do: ask a passkey. Every text goes in as text, never as HTML.
'use strict';
const one = (name, under = document) => under.querySelector(`[${name}]`);
const all = (name, under = document) => [...under.querySelectorAll(`[${name}]`)];

const say = (text, good = false, at = one('data-said')) => {
  at.textContent = text;
  at.classList.toggle('good', good);
  at.classList.toggle('bad', !good);
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
const withBytes = (options) => {
  const read = { ...options, challenge: bytes(options.challenge) };
  if (options.user) read.user = { ...options.user, id: bytes(options.user.id) };
  for (const list of ['allowCredentials', 'excludeCredentials']) {
    if (options[list]) read[list] = options[list].map((it) => ({ ...it, id: bytes(it.id) }));
  }
  return read;
};
const toGet = (options) => PublicKeyCredential.parseRequestOptionsFromJSON?.(options) ?? withBytes(options);
const toCreate = (options) => PublicKeyCredential.parseCreationOptionsFromJSON?.(options) ?? withBytes(options);

const assertion = async (options) => {
  const made = await navigator.credentials.get({ publicKey: toGet(options) });
  const { authenticatorData, clientDataJSON, signature, userHandle } = made.response;
  return {
    id: base64(made.rawId),
    response: {
      authenticatorData: base64(authenticatorData),
      clientDataJSON: base64(clientDataJSON),
      signature: base64(signature),
      userHandle: userHandle ? base64(userHandle) : null,
    },
  };
};

// Runs something once at a time, and tells what went wrong.
const on = (button, work) => button?.addEventListener('click', async () => {
  if (!window.PublicKeyCredential) return say('This browser has no passkeys.');
  button.disabled = true;
  say('');
  try {
    await work();
  } catch (error) {
    say(error.name === 'NotAllowedError' ? 'Your passkey was not used: cancelled, too late, or none that fits.' : error.message);
  }
  button.disabled = false;
});

on(one('data-sign-in'), async () => {
  const begun = await post('/sign-in/begin', {});
  const credential = await assertion(begun.publicKey);
  const { next } = await post('/sign-in', { token: begun.token, credential });
  location.assign(next);
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
  const begun = await post('/enrol/begin', { link });
  const made = await navigator.credentials.create({ publicKey: toCreate(begun.publicKey) });
  const publicKey = made.response.getPublicKey();
  if (!publicKey) throw new Error('This passkey is of a kind that approves nothing here.');
  const flags = new Uint8Array(made.response.getAuthenticatorData())[32];
  const passkey = {
    keyName: begun.keyName,
    credentialId: base64(made.rawId),
    publicKey: base64(publicKey),
    backupEligible: (flags & 8) !== 0,
  };
  const proof = await post('/enrol/prove', passkey);
  const credential = await assertion(proof.publicKey);
  const done = await post('/enrol', { link, passkey, credential });
  one('data-line').value = done.line;
  one('data-words').textContent = done.words;
  one('data-enrol').hidden = true;
  one('data-enrolled').hidden = false;
});

const form = one('data-gestures');
const gesture = async (path, begin) => {
  const form_token = form.dataset.formToken;
  const begun = await post(`${path}/begin`, { form_token, ...begin });
  const credential = await assertion(begun.publicKey);
  const { results } = await post(path, { form_token, ...begun.form, credential });
  for (const { uuid, done, text } of results) {
    say(text, done, one('data-outcome', one(`data-request="${CSS.escape(uuid)}"`)));
  }
  one('data-actions').hidden = true;
  const done = results.filter((it) => it.done).length;
  say(`${done} of ${results.length} done`, done === results.length);
};
const requests = form ? all('data-request', form) : [];
// What was shown goes along: a gesture is refused when the request has become another one since.
const shown = (it) => ({ uuid: it.dataset.request, shown: it.dataset.shown });
on(form && one('data-approve', form), () => gesture('/approve', {
  items: requests.map((it) => ({ ...shown(it), fee: one('data-fee', it)?.value ?? '' })),
}));
// Where requests of several vaults are shown, there is a button for each vault.
const rejects = form ? all('data-reject', form) : [];
rejects.forEach((button) => on(button, () => gesture('/reject', {
  items: requests.filter((it) => [undefined, '', it.dataset.vault].includes(button.dataset.reject)).map(shown),
  reason: one('data-reason', form).value,
})));
form?.addEventListener('submit', (event) => event.preventDefault());

const chooseAll = one('data-choose-all');
if (chooseAll) {
  one('data-all').hidden = false;
  const boxes = [...document.querySelectorAll('input[name=uuid]')];
  chooseAll.addEventListener('change', () => boxes.forEach((box) => { box.checked = chooseAll.checked; }));
}

for (const time of document.querySelectorAll('time[datetime]')) {
  const at = new Date(time.dateTime);
  time.title = time.textContent;
  time.textContent = at.toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' });
}
