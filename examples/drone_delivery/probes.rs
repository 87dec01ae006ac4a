//! The health of the job, over HTTP on loopback, and a prober that asks for it as a platform does.
use std::{
    convert::Infallible,
    future::{pending, ready},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http_body_util::{BodyExt, Empty, Full};
use hyper::{Request, Response, StatusCode, body::Bytes, body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use steadfast::{
    ConfigError,
    circuit_breaker::State,
    health::{Check, Group, Health, HealthConfig},
    store::{Key, Store},
    time::Clock,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
};

use crate::{dispatch::Dispatch, pipelines::Protection, services::Service};

/// Pause between two questions of the prober.
const PAUSE: Duration = Duration::from_millis(200);

/// Time limit of an answer.
const LIMIT: Duration = Duration::from_secs(2);

/// What the prober was told.
#[derive(Debug, Clone, Copy, Default)]
pub struct Probed {
    /// Number of times that it asked for liveness and readiness.
    pub asked: u64,
    /// Answers that the job works without one of its services.
    pub degraded: u64,
    /// Answers that a platform would restart the job for.
    pub liveness_failures: u64,
}

/// The probes of a running job.
pub struct Probes {
    health: Health,
    tasks: JoinSet<()>,
    probed: Arc<Mutex<Probed>>,
    ends: Arc<Notify>,
}

impl Probes {
    /// Serves `/livez` and `/readyz` on a free port, and asks for both.
    pub async fn start(store: &Arc<dyn Store>, protections: &[Protection], clock: &Clock) -> io::Result<Self> {
        let health = health(store, protections, clock).map_err(io::Error::other)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, mut tasks) = (listener.local_addr()?, JoinSet::new());
        let (probed, ends) = (Arc::new(Mutex::default()), Arc::new(Notify::new()));
        tasks.spawn(serve(health.clone(), listener, clock.clone()));
        tasks.spawn(ask(address, probed.clone(), ends.clone(), clock.clone()));
        Ok(Self { health, tasks, probed, ends })
    }

    /// Ends readiness as soon as the work is stopped.
    pub async fn follow(&self, work: &Dispatch) -> Infallible {
        work.stopped().await;
        self.health.stopping().await;
        pending().await
    }

    /// Asks a last time, and stops serving.
    pub async fn end(mut self) -> Probed {
        self.ends.notify_one();
        // The prober ends by itself, the server does not.
        self.tasks.join_next().await;
        self.tasks.shutdown().await;
        *lock(&self.probed)
    }
}

fn lock(probed: &Mutex<Probed>) -> MutexGuard<'_, Probed> {
    probed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the health of the job. It does not work without its store. Without one of the services it defers what needs that,
/// and a restart would help neither. So liveness has no check: an answer is enough.
fn health(store: &Arc<dyn Store>, protections: &[Protection], clock: &Clock) -> Result<Health, ConfigError> {
    let store = store.clone();
    let reads = Check::dependency("store", move || {
        let store = store.clone();
        async move { store.get(Key::new("health", "row")).await.map(drop) }
    });
    // Nobody balances load over this job, so nobody needs time to notice its stop.
    let config = HealthConfig::default().cache_ttl(Duration::from_millis(500)).drain_delay(Duration::ZERO);
    let mut built = Health::builder(config).name("drone_delivery").clock(clock).check(reads.required());
    for (service, protection) in Service::ALL.into_iter().zip(protections) {
        if let Some(breaker) = protection.breaker.clone() {
            let circuit =
                move || ready(if breaker.state() == State::Open { Err("the circuit is open") } else { Ok(()) });
            built = built.check(Check::dependency(service.as_str(), circuit));
        }
    }
    built.build()
}

async fn serve(health: Health, listener: TcpListener, clock: Clock) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                match accepted {
                    Ok((stream, _)) => drop(connections.spawn(connection(health.clone(), stream))),
                    // There are too many open files, say. That does not pass at once.
                    Err(_) => clock.sleep(PAUSE).await,
                }
            }
        }
    }
}

async fn connection(health: Health, stream: TcpStream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let health = health.clone();
        async move {
            let answer: Response<String> = match request.uri().path() {
                "/livez" => health.answer(&Group::Liveness, request.headers()).await,
                "/readyz" => health.answer(&Group::Readiness, request.headers()).await,
                _ => {
                    let mut unknown = Response::new(String::new());
                    *unknown.status_mut() = StatusCode::NOT_FOUND;
                    unknown
                }
            };
            Ok::<_, Infallible>(answer.map(|body| Full::new(Bytes::from(body))))
        }
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Asks for liveness and readiness until the job ends, and then once more.
async fn ask(address: SocketAddr, probed: Arc<Mutex<Probed>>, ends: Arc<Notify>, clock: Clock) {
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    let get = async |path| {
        let uri = format!("http://{address}{path}").parse().ok()?;
        let answer = async {
            let answer = client.get(uri).await.ok()?;
            let status = answer.status();
            Some((status, BodyExt::collect(answer.into_body()).await.ok()?.to_bytes()))
        };
        tokio::select! {
            answer = answer => answer,
            () = clock.sleep(LIMIT) => None,
        }
    };
    let mut is_over = false;
    loop {
        let (lives, serves) = (get("/livez").await, get("/readyz").await);
        {
            let mut probed = lock(&probed);
            probed.asked += 1;
            probed.liveness_failures += u64::from(lives.is_none_or(|(status, _)| status != StatusCode::OK));
            probed.degraded += u64::from(serves.is_some_and(|(_, word)| &*word == b"degraded"));
        }
        if is_over {
            return;
        }
        tokio::select! {
            () = ends.notified() => is_over = true,
            () = clock.sleep(PAUSE) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use steadfast::{entropy::Entropy, health::HealthStatus, store::InMemoryStore};

    use super::*;
    use crate::args::Args;

    #[tokio::test]
    async fn a_probe_without_an_answer_in_time_has_failed() {
        let hangs = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (clock, time) = Clock::manual();
        let (probed, ends) = (Arc::new(Mutex::default()), Arc::new(Notify::new()));
        ends.notify_one();
        let advance = async {
            // Liveness and readiness, before the end and after it.
            for _ in 0..4 {
                while time.next_timer().is_none() {
                    tokio::task::yield_now().await;
                }
                time.advance(LIMIT);
                tokio::task::yield_now().await;
            }
            pending::<()>().await;
        };
        tokio::select! {
            () = ask(hangs.local_addr().unwrap(), probed.clone(), ends, clock) => {}
            () = advance => {}
        }
        let probed = *lock(&probed);
        assert_eq!((probed.asked, probed.liveness_failures, probed.degraded), (2, 2, 0));
    }

    #[tokio::test]
    async fn a_job_without_a_service_is_degraded_and_alive_and_one_that_is_stopped_is_not_ready() {
        let (store, work) = (Arc::new(InMemoryStore::new()) as Arc<dyn Store>, Dispatch::new(1));
        let protections = Protection::all(&Args::parse_from(["drone_delivery"]), &Entropy::from_seed(1)).unwrap();
        protections[1].breaker.as_ref().unwrap().force_open(Duration::from_secs(60));
        let probes = Probes::start(&store, &protections, &Clock::tokio()).await.unwrap();
        let report = probes.health.report(&Group::Readiness).await;
        let bad: Vec<_> =
            report.checks.iter().filter(|check| check.reason.is_some()).map(|check| check.name.as_str()).collect();
        assert_eq!((report.status, bad), (HealthStatus::Degraded, vec!["package"]));
        work.stop();
        let ends = async {
            while probes.health.is_fit() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            never = probes.follow(&work) => match never {},
            () = ends => {}
        }
        assert_eq!(probes.health.report(&Group::Liveness).await.status, HealthStatus::Healthy);
        let probed = probes.end().await;
        assert!(probed.asked >= 1 && probed.liveness_failures == 0, "{probed:?}");
    }
}
