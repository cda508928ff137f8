// Checks a webhook by other people's libraries: `v1` by standardwebhooks, `v1a` and `Signature` by tweetnacl. Takes and says
// what docs/verify-webhook.mjs does, and wants both "secret" and "keys".
import { readFileSync } from 'node:fs';
import { Webhook } from 'standardwebhooks';
import nacl from 'tweetnacl';

const { headers, body, secret, keys } = JSON.parse(readFileSync(0, 'utf8'));
const bytes = (text, encoding) => new Uint8Array(Buffer.from(text, encoding));
const publicKeys = keys.keys.map(({ x }) => bytes(x, 'base64url'));
const isBy = (message, signature) =>
  publicKeys.some((key) => signature.length === 64 && nacl.sign.detached.verify(bytes(message), signature, key));
try {
  const event = new Webhook(secret).verify(body, headers);
  const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${body}`;
  const v1a = headers['webhook-signature'].split(' ').filter((one) => one.startsWith('v1a,'));
  if (!v1a.some((one) => isBy(signed, bytes(one.slice(4), 'base64')))) throw new Error('v1a is wrong');
  if (!isBy(body, bytes(headers.signature, 'base64'))) throw new Error('Signature is wrong');
  console.log(event.id);
} catch (error) {
  console.log(`refused: ${error.message}`);
}
