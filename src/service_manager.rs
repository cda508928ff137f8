//! Notifies the service manager (systemd's `Type=notify` and `WatchdogSec=`) that the process is ready, is
//! alive, and stops. Does nothing if no service manager asks for it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use sd_notify::NotifyState;

/// Says that the process works, and from then on, while it is asked for, that its runtime runs tasks: until the process is
/// gone, as stopping may take a while.
///
/// Within a runtime.
pub fn ready() {
    tell(NotifyState::Ready);
    let period = sd_notify::watchdog_enabled().map(|limit| limit / 2);
    if let Some(period) = period.filter(|period| !period.is_zero()) {
        tokio::spawn(keep_alive(period));
    }
}

/// Says that the process stops. Before it does: a process with little to stop is gone at once.
pub fn stopping() {
    tell(NotifyState::Stopping);
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
