//! Ctrl-C and SIGTERM: work in progress is finished, and the report shows the result so far.
use std::{
    fmt,
    io::{self, Write},
    process,
    sync::{Arc, OnceLock},
    time::Duration,
};

use steadfast::time::Clock;

/// Maximum duration of a run after the first signal; below the 30 s of Kubernetes' grace period.
const DRAIN: Duration = Duration::from_secs(20);

/// The signal that ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    Int,
    Term,
}

impl Interrupt {
    /// Returns the conventional exit code: 128 plus the signal's number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Int => 130,
            Self::Term => 143,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Int => "SIGINT",
            Self::Term => "SIGTERM",
        }
    }
}

impl fmt::Display for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Handles signals until the runtime ends. The first signal calls `stop`; a second one, or the end of
/// the drain time, ends the process. Returns the cell of the first signal.
pub fn listen(clock: &Clock, stop: impl FnOnce() + Send + 'static) -> io::Result<Arc<OnceLock<Interrupt>>> {
    let (mut signals, clock) = (Signals::new()?, clock.clone());
    let noted = Arc::new(OnceLock::new());
    let first = noted.clone();
    tokio::spawn(async move {
        let signal = signals.next().await;
        let _ = first.set(signal);
        tell(&format!("{signal}: finishing the work in progress; a second signal ends it at once"));
        stop();
        let signal = tokio::select! {
            again = signals.next() => again,
            () = clock.sleep(DRAIN) => signal,
        };
        tell(&format!("{signal}: ended with work in progress; finished steps are in the store"));
        process::exit(signal.code().into());
    });
    Ok(noted)
}

fn tell(what: &str) {
    let _ = writeln!(io::stderr().lock(), "drone_delivery: {what}");
}

#[cfg(unix)]
struct Signals {
    int: tokio::signal::unix::Signal,
    term: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { int: signal(SignalKind::interrupt())?, term: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) -> Interrupt {
        tokio::select! {
            _ = self.int.recv() => Interrupt::Int,
            _ = self.term.recv() => Interrupt::Term,
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> Interrupt {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        Interrupt::Int
    }
}
