//! Ctrl-C and SIGTERM: what is being worked on is finished, and the report says what is done so
//! far.
use std::{
    fmt,
    io::{self, Write},
    process,
    sync::{Arc, OnceLock},
    time::Duration,
};

use steadfast::time::Clock;

/// The longest that a run goes on after the first signal; less than the 30 s after which Kubernetes
/// kills.
const DRAIN: Duration = Duration::from_secs(20);

/// The signal that ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    Int,
    Term,
}

impl Interrupt {
    /// The exit code by convention: 128 and the signal's number.
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

/// Listens for signals until the runtime ends. The first calls `stop`; a second one, or the end of
/// the time to drain, ends the process. Returns where the first one is noted.
pub fn listen(clock: &Clock, stop: impl FnOnce() + Send + 'static) -> io::Result<Arc<OnceLock<Interrupt>>> {
    let (mut signals, clock) = (Signals::new()?, clock.clone());
    let noted = Arc::new(OnceLock::new());
    let first = noted.clone();
    tokio::spawn(async move {
        let signal = signals.next().await;
        let _ = first.set(signal);
        tell(&format!("{signal}: finishing what is being worked on; once more ends it at once"));
        stop();
        let signal = tokio::select! {
            again = signals.next() => again,
            () = clock.sleep(DRAIN) => signal,
        };
        tell(&format!("{signal}: ended before the work in hand was; what was done is in the store"));
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
