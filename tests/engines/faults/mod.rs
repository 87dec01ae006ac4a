//! Faults of real servers under load: killed, stopped, cut off, slow, failed over.
//!
//! `STEADFAST_MESSAGES`, `STEADFAST_CHANGES` and `STEADFAST_PROMOTIONS` set the sizes of the runs; by default they are small.
mod idle;
mod leader;
mod ledger;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod promotion;
mod queue;
#[cfg(feature = "redis")]
mod sentinels;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use steadfast::{
    backend::{self, Backend},
    port::{ErrorClass, Failure},
};

use crate::server::Proxy;

const MS: fn(u64) -> Duration = Duration::from_millis;
/// Longest time without an answer, a leader or other progress, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Returns the size of a run that this variable sets.
pub(crate) fn size(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, is {text:?}")))
}

/// A server as a fault run disturbs it.
trait Server: fmt::Debug + Send + Sync + 'static {
    fn port(&self) -> u16;
    fn url_at(&self, port: u16) -> String;
    fn kill(&self);
    fn start_again(&self);
    fn stop(&self);
    fn cont(&self);
}

macro_rules! server {
    ($server:ty) => {
        impl Server for $server {
            fn port(&self) -> u16 {
                self.port()
            }
            fn url_at(&self, port: u16) -> String {
                self.url_at(port)
            }
            fn kill(&self) {
                self.kill();
            }
            fn start_again(&self) {
                self.start_again();
            }
            fn stop(&self) {
                self.stop();
            }
            fn cont(&self) {
                self.cont();
            }
        }
    };
}

#[cfg(feature = "nats")]
server!(crate::server::Nats);
#[cfg(feature = "postgres")]
server!(crate::server::Postgres);
#[cfg(feature = "redis")]
server!(crate::server::Redis);

/// A server and a proxy in front of it.
#[derive(Debug, Clone)]
struct Engine {
    server: Arc<dyn Server>,
    proxy: Arc<Proxy>,
}

impl Engine {
    fn new(server: impl Server) -> Self {
        let proxy = Arc::new(Proxy::start(server.port()));
        Self { server: Arc::new(server), proxy }
    }

    /// Returns the same server behind a proxy of its own.
    fn aside(&self) -> Self {
        Self { server: self.server.clone(), proxy: Arc::new(Proxy::start(self.server.port())) }
    }

    /// Opens a handle through the proxy.
    async fn open(&self) -> Backend {
        backend::open(&self.server.url_at(self.proxy.port())).await.unwrap()
    }

    /// Opens a handle past the proxy.
    async fn open_directly(&self) -> Backend {
        backend::open(&self.server.url_at(self.server.port())).await.unwrap()
    }

    /// Runs a blocking act on the server.
    async fn act(&self, act: impl FnOnce(&Self) + Send + 'static) {
        let engine = self.clone();
        blocking(move || act(&engine)).await;
    }
}

/// Runs an act on servers that takes its time.
async fn blocking<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(act).await.unwrap()
}

/// Runs a test on a runtime with several threads.
fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap().block_on(test);
}

/// Asks again while the backend is not there. Returns the answer and the number of failures before it.
///
/// # Panics
/// If the backend is not there for minutes, or at an error that does not pass by itself.
pub(crate) async fn again<T, E: Failure, F: Future<Output = Result<T, E>>>(
    what: &str,
    ask: impl Fn() -> F,
) -> (T, u64) {
    let began = std::time::Instant::now();
    for failures in 0.. {
        match ask().await {
            Ok(done) => return (done, failures),
            Err(error) => {
                let passes = error.class() != ErrorClass::Permanent;
                assert!(passes && began.elapsed() < PATIENCE, "{what}: {error}");
                crate::server::pass(MS(10)).await;
            }
        }
    }
    unreachable!("it asks for ever")
}
