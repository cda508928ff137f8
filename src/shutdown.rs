//! Stopping: the first SIGTERM or SIGINT asks politely, the second ends the process at once.

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

/// Becomes true when the process should stop.
pub type StopSignal = watch::Receiver<bool>;

/// Listens for the signals. `told` is called before anything stops.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn on_signals(told: fn()) -> std::io::Result<StopSignal> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        next(&mut terminate, &mut interrupt).await;
        tracing::info!("stopping; a second signal ends the process at once");
        told();
        // Nobody listening means that everything has stopped already.
        let _ = sender.send(true);
        next(&mut terminate, &mut interrupt).await;
        // 128 + SIGINT, as shells report a process that a signal ended.
        std::process::exit(130);
    });
    Ok(receiver)
}

/// Listens for SIGHUP, which would end the process otherwise. From then on it does not, even when nobody listens any
/// more.
///
/// # Errors
/// When the signal handler cannot be installed.
pub fn hangups() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Waits until `stop` says so.
pub async fn requested(stop: &mut StopSignal) {
    // An error means that the sender is gone, which only happens when the process ends.
    let _ = stop.wait_for(|stop| *stop).await;
}
