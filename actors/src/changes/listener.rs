//! One listener: its place among the changes in memory, and in the logs where it is further behind.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use covault_core::{fault::Fault, ids::VaultId};
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use super::{
    Change, ChangeHub, ChangeProgress, MARGIN_MS, Position, REACH_MS, RecentChanges,
    pages::{LogCursor, LogPage},
};
use crate::{
    commands::caller::{Caller, in_scope},
    lists::READ_CHUNK,
    services::Services,
};

/// Before it looks again when the store cannot be read.
const RETRY: Duration = Duration::from_secs(1);

/// How a listener begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerStart {
    /// With what changes from now on.
    Now,
    /// Behind the last change that it has heard.
    GoesOn,
    /// As [`ListenerStart::Now`]: where it was is longer ago than is kept, or never was. It has to look at everything again.
    Anew,
}

/// What a listener hears: a page of [`READ_CHUNK`] changes at most.
#[derive(Debug)]
pub struct HeardChanges {
    /// Changes, each with the position behind it; `None`: it stays where it was.
    pub changes: Vec<(Arc<Change>, Option<Position>)>,
    /// Whether the caller's token may be another one, or none, since the last time.
    pub check_token: bool,
}

/// Hears what changes of the requests that a caller may see.
pub struct ChangeListener {
    services: Arc<Services>,
    hub: Arc<ChangeHub>,
    caller: Caller,
    news: watch::Receiver<ChangeProgress>,
    place: ListenerMode,
    /// The last entry of the service's log when the token was last to be checked; 0: it never was.
    service: u64,
}

/// Where a listener is.
enum ListenerMode {
    /// Among the changes in memory.
    Live(LiveMode),
    /// In the logs.
    Behind(CatchUpMode),
}

struct LiveMode {
    /// Behind which change.
    at: Position,
    /// Since when changes count that were there when it came, in milliseconds since the Unix epoch.
    from_ms: u64,
    /// The number of the first change that was not there yet.
    new_from: u64,
}

struct CatchUpMode {
    /// Since when it has to hear of changes, in milliseconds since the Unix epoch.
    from_ms: u64,
    /// The logs that are not begun yet.
    vaults: VecDeque<VaultId>,
    /// The one that is being read.
    reading: Option<LogCursor>,
    /// Its next page, which is read in a task of its own: who stops asking in the middle of it keeps nobody waiting,
    /// and finds it later.
    page: Option<JoinHandle<Result<LogPage, Fault>>>,
    /// Where it continues when it has read them.
    then: Position,
}

impl Drop for CatchUpMode {
    fn drop(&mut self) {
        if let Some(page) = &self.page {
            page.abort();
        }
    }
}

impl ChangeListener {
    /// Begins behind a position, or now. Waits as long as the store cannot be read.
    pub(crate) async fn begin(
        services: Arc<Services>,
        hub: Arc<ChangeHub>,
        caller: Caller,
        after: Option<Position>,
    ) -> (Self, ListenerStart) {
        hub.enter();
        let mut listener = Self {
            news: hub.news.subscribe(),
            caller,
            place: ListenerMode::Live(LiveMode {
                at: Position::default(),
                from_ms: 0,
                new_from: 0,
            }),
            service: 0,
            services,
            hub,
        };
        let is_there = |news: &ChangeProgress| news.follower != 0;
        // Its other half is in the hub.
        let _ = listener.news.wait_for(is_there).await;
        let now_ms = listener.services.now_ms();
        let start = match after {
            None => ListenerStart::Now,
            Some(after)
                if after.safe_ms.saturating_add(REACH_MS) < now_ms
                    || after.safe_ms > now_ms.saturating_add(MARGIN_MS) =>
            {
                ListenerStart::Anew
            }
            Some(_) => ListenerStart::GoesOn,
        };
        let after = after.filter(|_| start == ListenerStart::GoesOn);
        listener.find_place(after);
        (listener, start)
    }

    /// Behind which change it is; `None` while it reads the logs.
    pub fn position(&self) -> Option<Position> {
        let ListenerMode::Live(live) = &self.place else {
            return None;
        };
        let followed = self.hub.followed.read();
        let followed = followed.as_ref().filter(|it| it.id == live.at.follower);
        // With nothing new behind it, it has heard all that there was.
        let heard_all = followed.filter(|it| it.visible <= live.at.next);
        Some(Position {
            safe_ms: heard_all.map_or(live.at.safe_ms, |it| it.safe_ms),
            ..live.at
        })
    }

    /// Finds the place behind a position, or behind all that there is.
    fn find_place(&mut self, after: Option<Position>) {
        let followed = self.hub.followed.read();
        let Some(followed) = &*followed else {
            // There is a next one as soon as anyone listens, and this one does.
            return;
        };
        let end = Position {
            safe_ms: followed.safe_ms,
            follower: followed.id,
            next: followed.visible,
        };
        let live = |at: Position, from_ms| {
            ListenerMode::Live(LiveMode {
                at,
                from_ms,
                new_from: end.next,
            })
        };
        self.place = match after {
            None => live(end, 0),
            Some(after) if is_kept(followed, &after) => live(after, 0),
            Some(after) => {
                let from_ms = after.safe_ms.saturating_sub(MARGIN_MS);
                if from_ms >= followed.complete_from_ms {
                    let first = Position {
                        safe_ms: after.safe_ms,
                        follower: followed.id,
                        next: followed.first,
                    };
                    live(first, from_ms)
                } else {
                    let written = followed.last_ms.iter();
                    let vaults = written.filter(|(_, last_ms)| **last_ms >= from_ms);
                    let vaults = vaults.map(|(vault, _)| *vault);
                    ListenerMode::Behind(CatchUpMode {
                        from_ms,
                        vaults: vaults
                            .filter(|vault| in_scope(&self.caller, *vault))
                            .collect(),
                        reading: None,
                        page: None,
                        then: end,
                    })
                }
            }
        };
    }

    /// Waits for the next changes. May be given up at any time: nothing is lost then.
    pub async fn next(&mut self) -> HeardChanges {
        loop {
            let heard = match &self.place {
                ListenerMode::Live(_) => self.live(),
                ListenerMode::Behind(_) => match self.read().await {
                    Ok(heard) => heard,
                    Err(fault) => {
                        tracing::debug!(?fault, "a listener reads the logs later");
                        sleep(RETRY).await;
                        None
                    }
                },
            };
            if let Some(heard) = heard {
                return heard;
            }
            if matches!(self.place, ListenerMode::Live(_)) {
                // Its other half is in the hub.
                let _ = self.news.changed().await;
            }
        }
    }

    /// The next changes in memory; `None` when there is nothing new, or it has fallen behind.
    fn live(&mut self) -> Option<HeardChanges> {
        let is_followed = self.news.borrow_and_update().follower != 0;
        let ListenerMode::Live(live) = &mut self.place else {
            return None;
        };
        let hub = Arc::clone(&self.hub);
        let known = hub.followed.read();
        let followed = known.as_ref().filter(|it| is_kept(it, &live.at));
        let Some(followed) = followed else {
            let at = live.at;
            drop(known);
            if is_followed {
                self.find_place(Some(at));
                self.news.mark_changed();
            }
            return None;
        };
        let mut changes = Vec::new();
        for (next, change) in followed.from(live.at.next) {
            if changes.len() >= READ_CHUNK {
                break;
            }
            let is_new = live.at.next >= live.new_from;
            live.at.next = next;
            live.at.safe_ms = change.safe_ms.max(live.at.safe_ms);
            if (is_new || change.at_ms >= live.from_ms) && in_scope(&self.caller, change.vault) {
                changes.push((Arc::clone(change), Some(live.at)));
            }
        }
        if live.at.next < followed.visible {
            self.news.mark_changed();
        }
        let check_token = self.service != followed.service;
        self.service = followed.service;
        (check_token || !changes.is_empty()).then_some(HeardChanges {
            changes,
            check_token,
        })
    }

    /// The next changes in the logs; `None` when there are none on this page, or it has read all.
    async fn read(&mut self) -> Result<Option<HeardChanges>, Fault> {
        let ListenerMode::Behind(behind) = &mut self.place else {
            return Ok(None);
        };
        if behind.reading.is_none() {
            behind.reading = behind.vaults.pop_front().map(LogCursor::new);
        }
        let Some(cursor) = &behind.reading else {
            let then = behind.then;
            self.find_place(Some(then));
            self.news.mark_changed();
            return Ok(None);
        };
        let vault = cursor.vault();
        let page = behind.page.get_or_insert_with(|| {
            let (services, hub) = (Arc::clone(&self.services), Arc::clone(&self.hub));
            tokio::spawn(cursor.clone().page(services, hub, behind.from_ms))
        });
        let page = page.await;
        // Nothing is waited for from here on.
        behind.page = None;
        let LogPage { changes, rest } = page.map_err(Fault::bug)??;
        behind.reading = rest;
        let heard = |(at_ms, data)| {
            let change = Change {
                vault,
                data,
                at_ms,
                safe_ms: 0,
            };
            (Arc::new(change), None)
        };
        let changes: Vec<_> = changes.into_iter().map(heard).collect();
        Ok((!changes.is_empty()).then_some(HeardChanges {
            changes,
            check_token: true,
        }))
    }
}

/// Whether all changes behind a position are in memory.
fn is_kept(followed: &RecentChanges, position: &Position) -> bool {
    followed.id == position.follower && (followed.first..=followed.visible).contains(&position.next)
}

impl Drop for ChangeListener {
    fn drop(&mut self) {
        self.hub.leave();
    }
}
