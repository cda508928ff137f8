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
  const changed = () => (touched() || left() ? (live.hidden = false) : location.reload());
  let events;
  const listen = () => {
    events?.close();
    // A browser has few connections to one place: a page that nobody sees holds none.
    if (document.hidden) return;
    events = new EventSource('/events');
    events.addEventListener('changed', changed);
    // What has come between the page and the stream.
    events.addEventListener('pending', ({ data }) => {
      if ('pending' in live.dataset && live.dataset.pending !== data) changed();
    });
    // An answer that is no stream ends it for good: until there is one again, the page may be old.
    events.addEventListener('error', () => {
      if (events.readyState !== EventSource.CLOSED) return;
      live.hidden = false;
      setTimeout(listen, 10_000 + Math.random() * 20_000);
    });
  };
  document.addEventListener('visibilitychange', listen);
  listen();
}
