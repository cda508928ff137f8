//! Notifies the service manager (systemd's `Type=notify` and `WatchdogSec=`) that the process is ready, is
//! alive, and stops. Does nothing if no service manager asks for it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use sd_notify::NotifyState;

use crate::shutdown::{self, StopSignal};

/// Says that the process works, that it still does for as long as its runtime runs tasks, and once that it stops.
///
/// Within a runtime.
pub fn ready(mut stop: StopSignal) {
    tell(NotifyState::Ready);
    let period = sd_notify::watchdog_enabled().map(|limit| limit / 2);
    tokio::spawn(async move {
        let alive = async {
            match period.filter(|period| !period.is_zero()) {
                Some(period) => keep_alive(period).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown::requested(&mut stop) => tell(NotifyState::Stopping),
            () = alive => {}
        }
        // Until the process is gone: stopping may take a while.
        if let Some(period) = period.filter(|period| !period.is_zero()) {
            keep_alive(period).await;
        }
    });
}

async fn keep_alive(period: Duration) {
    let mut ticks = tokio::time::interval(period);
    loop {
        ticks.tick().await;
        tell(NotifyState::Watchdog);
    }
}

fn tell(state: NotifyState<'_>) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if let Err(error) = sd_notify::notify(&[state])
        && !SAID.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(%error, "failed to notify the service manager (NOTIFY_SOCKET); logged once");
    }
}
