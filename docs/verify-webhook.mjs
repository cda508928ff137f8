// Checks a webhook of Covault: see deposits.md. Needs Node 18 or newer, and nothing else.
// node verify-webhook.mjs < WEBHOOK.json    {"headers": {...}, "body": "the raw body", "secret": "whsec_...",
// "keys": what GET /v1/webhooks/keys answers}; leave out "secret" or "keys" to check by the other alone.
import { createHmac, createPublicKey, timingSafeEqual, verify } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const TOLERANCE_SECONDS = 300;
// Anybody can sign with the key of a setting that was left empty.
const SECRET_BYTES = 24;

/** The event of a webhook, or an error. `body` is the raw body, as text; `headers` are in lower case. */
export function verifyWebhook(body, headers, { secret, keys, now = Date.now() / 1000 }) {
  const [id, timestamp] = [headers['webhook-id'], headers['webhook-timestamp']];
  if (!id || !/^\d+$/.test(timestamp ?? '')) throw new Error('no id or time');
  if (Math.abs(now - Number(timestamp)) > TOLERANCE_SECONDS) throw new Error('too old, or too new');
  const signed = Buffer.from(`${id}.${timestamp}.${body}`);
  const signatures = (headers['webhook-signature'] ?? '').split(' ').map((one) => one.split(','));
  const of = (version) => signatures.filter(([is]) => is === version).map(([, text]) => Buffer.from(text ?? '', 'base64'));
  if (!secret && !keys) throw new Error('nothing to check by');
  if (secret) {
    const key = Buffer.from(secret.replace(/^whsec_/, ''), 'base64');
    if (key.length < SECRET_BYTES) throw new Error('the secret is too short');
    const mac = createHmac('sha256', key).update(signed).digest();
    if (!of('v1').some((one) => one.length === mac.length && timingSafeEqual(one, mac))) throw new Error('v1 is wrong');
  }
  if (keys) {
    const publicKeys = keys.keys.map(({ kty, crv, x }) => createPublicKey({ key: { kty, crv, x }, format: 'jwk' }));
    const isBy = (message, signature) => publicKeys.some((key) => verify(null, message, key, signature));
    if (!of('v1a').some((one) => isBy(signed, one))) throw new Error('v1a is wrong');
    if (!isBy(Buffer.from(body), Buffer.from(headers['signature'] ?? '', 'base64'))) throw new Error('Signature is wrong');
  }
  const event = JSON.parse(body);
  if (event.id !== id) throw new Error('the id is of another event');
  return event;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { headers, body, ...by } = JSON.parse(readFileSync(0, 'utf8'));
  try {
    console.log(verifyWebhook(body, headers, by).id);
  } catch (error) {
    console.log(`refused: ${error.message}`);
    process.exitCode = 1;
  }
}
