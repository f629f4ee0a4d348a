//! Converts signals to requests: the first SIGINT or SIGTERM asks a run to stop, the second to stop
//! immediately.

use imgctl_base::error::{IoContext, Result};
use imgctl_cluster::pipeline::interrupt::Interrupt;

/// Listens for the rest of the process's lifetime.
pub(crate) fn listen(interrupt: &Interrupt) -> Result<()> {
    let interrupt = interrupt.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "cannot listen for signals".to_owned())?;
    // Registered before returning, so that no signal is missed.
    let (mut terminate, mut ctrl_c) = {
        use tokio::signal::unix::{SignalKind, signal};
        let _inside = runtime.enter();
        (
            signal(SignalKind::terminate()).doing(|| "cannot listen for signals".to_owned())?,
            signal(SignalKind::interrupt()).doing(|| "cannot listen for signals".to_owned())?,
        )
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(async move {
                loop {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = ctrl_c.recv() => {}
                    }
                    interrupt.ask();
                }
            });
        })
        .doing(|| "cannot start a thread".to_owned())?;
    Ok(())
}
