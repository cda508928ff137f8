// A page notices that what it shows has changed.
'use strict';
const live = document.querySelector('[data-live]');
if (live) {
  // Nothing is taken away from a person who is choosing or reading: only a list that nobody has touched loads again.
  const touched = () => document.querySelector('[data-gestures]') || document.querySelector('input:checked');
  // A page that nobody looks at must not keep its session alive.
  const note = () => { sessionStorage.used = Date.now(); };
  ['keydown', 'pointerdown'].forEach((kind) => addEventListener(kind, note));
  if (!sessionStorage.used) note();
  const left = () => Date.now() - sessionStorage.used > 20 * 60_000;
  const opened = Date.now();
  let again;
  // A list that changes all the time stands still long enough to be read.
  const changed = () => {
    if (touched() || left()) { live.hidden = false; return; }
    clearTimeout(again);
    again = setTimeout(() => location.reload(), Math.max(0, opened + 10_000 - Date.now()));
  };
  let events, retry, silence;
  const hears = () => { clearTimeout(silence); silence = undefined; };
  const deaf = () => { live.hidden = false; };
  // From the first moment on: each try to connect again fails by itself.
  const waits = () => { silence ??= setTimeout(deaf, 15_000); };
  const listen = () => {
    events?.close();
    clearTimeout(retry);
    hears();
    // A browser has few connections to one place: a page that nobody sees holds none.
    if (document.hidden) return;
    events = new EventSource(live.dataset.events ?? '/events');
    waits();
    events.addEventListener('open', hears);
    events.addEventListener('changed', changed);
    // What has come between the page and the stream.
    events.addEventListener('pending', ({ data }) => {
      if ('pending' in live.dataset && live.dataset.pending !== data) changed();
    });
    events.addEventListener('error', () => {
      waits();
      // An answer that is no stream ends it for good.
      if (events.readyState !== EventSource.CLOSED) return;
      deaf();
      retry = setTimeout(listen, 10_000 + Math.random() * 20_000);
    });
  };
  document.addEventListener('visibilitychange', () => {
    // Pages without a mark cannot tell what came while nobody saw them.
    if (!document.hidden && !('pending' in live.dataset)) live.hidden = false;
    listen();
  });
  listen();
}
