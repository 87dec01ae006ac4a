//! The five services, over HTTP on loopback, each on its own port. They keep books for the audit.
use std::{
    collections::HashMap,
    convert::Infallible,
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, StatusCode, body::Bytes, body::Incoming, header, service::service_fn};
use hyper_util::rt::TokioIo;
use steadfast::{
    saga::{Compensated, Executed, Participant},
    store::{DeleteOptions, Key, Precondition, Scan, Store, StoreError, StoreExt, Write},
    time::{Clock, Instant},
};
use tokio::{
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};

use crate::{
    args::Suspend,
    faults::{Fault, FaultPlan},
};

/// The services of the workflow, in the order in which a request meets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    Account,
    Package,
    Transport,
    Drone,
    Delivery,
}

impl Service {
    pub const ALL: [Self; 5] = [Self::Account, Self::Package, Self::Transport, Self::Drone, Self::Delivery];

    pub const fn as_str(self) -> &'static str {
        ["account", "package", "transport", "drone", "delivery"][self as usize]
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One running service.
pub struct Running {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    service: Service,
    plan: FaultPlan,
    suspend: Option<Suspend>,
    clock: Clock,
    start: Instant,
    /// Number of received requests.
    received: AtomicU64,
    /// Books: a row for each effect, with its subject. They survive a crash.
    store: Arc<dyn Store>,
    partition: String,
    /// Makes and releases reservations once per key, and refuses one that arrives after its release.
    reservations: Participant,
    /// Requests repeated after their effect.
    repeats: AtomicU64,
    /// Released reservations.
    released: AtomicU64,
}

/// Effects of a service, in this run and in earlier runs on the same store.
#[derive(Debug, Default, Clone)]
pub struct Books {
    /// Number of effects by subject: one each, if all is well.
    pub effects: HashMap<String, u32>,
    /// Requests repeated in this run after their effect, and answered without another effect.
    pub repeats: u64,
    /// Reservations released in this run.
    pub released: u64,
}

/// Prefix of the rows of effects, beside the participant's own.
pub const EFFECTS: &str = "e/";

/// Duration of a correct answer.
const WORK: Duration = Duration::from_millis(2);

impl Running {
    /// Binds a free port and serves until the runtime ends.
    pub async fn start(
        service: Service,
        plan: &FaultPlan,
        suspend: Option<Suspend>,
        clock: &Clock,
        start: Instant,
        store: Arc<dyn Store>,
    ) -> io::Result<Self> {
        let partition = format!("books of {service}");
        let reservations = Participant::new(store.clone(), &*partition).map_err(io::Error::other)?;
        let state = Arc::new(State {
            service,
            plan: plan.clone(),
            suspend,
            clock: clock.clone(),
            start,
            received: AtomicU64::new(0),
            store,
            partition,
            reservations,
            repeats: AtomicU64::new(0),
            released: AtomicU64::new(0),
        });
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0)))?.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        tokio::spawn(serve(state.clone(), listener, address));
        Ok(Self { address, state })
    }

    /// Returns the effects of the service.
    pub async fn books(&self) -> Result<Books, StoreError> {
        let state = &*self.state;
        let (repeats, released) = (state.repeats.load(Ordering::Relaxed), state.released.load(Ordering::Relaxed));
        let mut books = Books { repeats, released, ..Books::default() };
        for row in state.store.scan_all(Scan::partition(&state.partition).prefix(EFFECTS).limit(1000)).await? {
            *books.effects.entry(String::from_utf8_lossy(&row.value).into_owned()).or_default() += 1;
        }
        Ok(books)
    }
}

/// Binds the port without listening: connections are refused.
fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Maximum of connections that wait to be accepted.
const BACKLOG: u32 = 4096;

/// Serves; crashes and recovers by plan: the port is closed, and every connection reset.
async fn serve(state: Arc<State>, mut listener: tokio::net::TcpListener, address: SocketAddr) {
    let crash = state.plan.crash.filter(|(service, ..)| *service == state.service);
    let mut connections = JoinSet::new();
    let mut dead = std::pin::pin!(async {
        match crash {
            Some((_, from, _)) => state.clock.sleep_until(state.start + from).await,
            None => std::future::pending().await,
        }
    });
    let mut crashed = false;
    loop {
        tokio::select! {
            () = &mut dead, if !crashed => {
                crashed = true;
                drop(listener);
                connections.shutdown().await;
                // The port stays reserved for this service.
                let mut socket = bind(address);
                let (_, from, lasts) = crash.unwrap_or((state.service, Duration::ZERO, Duration::ZERO));
                state.clock.sleep_until(state.start + from + lasts).await;
                listener = loop {
                    match socket.and_then(|socket| socket.listen(BACKLOG)) {
                        Ok(listener) => break listener,
                        Err(_) => state.clock.sleep(Duration::from_millis(20)).await,
                    }
                    socket = bind(address);
                };
            }
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(state.clone(), stream));
                }
            }
        }
    }
}

async fn connection(state: Arc<State>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    // A dropped connection is reset, as after the death of a process.
    let _ = stream.set_zero_linger();
    let service = service_fn(move |request| handle(state.clone(), request));
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// A connection that is to be dropped without an answer.
#[derive(Debug)]
struct DropConnection;

impl fmt::Display for DropConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is dropped without an answer")
    }
}

impl std::error::Error for DropConnection {}

async fn handle(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, DropConnection> {
    let n = state.received.fetch_add(1, Ordering::Relaxed);
    let fault = state.plan.fault(state.service, n, state.clock.now() - state.start);
    match fault {
        Fault::Overloaded => {
            let mut busy = answer(StatusCode::SERVICE_UNAVAILABLE);
            busy.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
            return Ok(busy);
        }
        Fault::Hang(d) => {
            state.clock.sleep(d).await;
            return Err(DropConnection);
        }
        // Half of the resets come before the work, half after it: then the caller does not know the effect.
        Fault::Reset if n.is_multiple_of(2) => return Err(DropConnection),
        Fault::Slow(d) => state.clock.sleep(d).await,
        Fault::Reset | Fault::None => state.clock.sleep(WORK).await,
    }
    let answered = act(&state, request).await.unwrap_or_else(|never| match never {});
    if fault == Fault::Reset { Err(DropConnection) } else { Ok(answered) }
}

fn answer(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// Performs the service's work.
async fn act(state: &State, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return Ok(answer(StatusCode::BAD_REQUEST)) };
    let body = body.to_bytes();
    let subject = head.uri.path().rsplit('/').next().unwrap_or_default();
    let key = head.headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let is_json = || serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok();
    let status = match (state.service, &head.method, key) {
        (Service::Account, &Method::GET, _) if state.is_suspended(subject) => StatusCode::FORBIDDEN,
        (Service::Account, &Method::GET, _) => StatusCode::OK,
        // A drone is scheduled by a POST, made idempotent by its key. What flies is booked by what the document says, so
        // that a client which changed the key between two attempts would be found out.
        (Service::Drone, &Method::POST, Some(key)) => match serde_json::from_slice::<Order>(&body) {
            Ok(order) => state.reserve(key, order.delivery).await,
            Err(_) => StatusCode::BAD_REQUEST,
        },
        (Service::Transport, &Method::PUT, Some(key)) if is_json() => state.reserve(key, subject.to_owned()).await,
        (Service::Drone | Service::Transport, &Method::DELETE, Some(key)) => state.release(key).await,
        (Service::Package | Service::Delivery, &Method::PUT, _) if is_json() => state.happen(subject).await,
        (Service::Package | Service::Transport | Service::Drone | Service::Delivery, ..) => StatusCode::BAD_REQUEST,
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    Ok(answer(status))
}

/// Fields that the drone service reads.
#[derive(serde::Deserialize)]
struct Order {
    #[serde(rename = "deliveryId")]
    delivery: String,
}

impl State {
    fn is_suspended(&self, owner: &str) -> bool {
        let now = self.clock.now() - self.start;
        owner.starts_with("suspended-") || self.suspend.as_ref().is_some_and(|s| s.owner == owner && now >= s.at)
    }

    /// Performs an effect once: 201 if it is new, 204 if it existed.
    async fn happen(&self, subject: &str) -> StatusCode {
        match self.store.insert(Key::new(&self.partition, &effect(subject)), subject.to_owned()).await {
            Ok(_) => StatusCode::CREATED,
            Err(StoreError::Conflict { .. }) => self.repeated(),
            // The effect is unknown: the caller repeats the request with the same key.
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Makes the reservation of a key once. 410 if it was released before it came.
    async fn reserve(&self, key: &str, subject: String) -> StatusCode {
        let row = Write::put(effect(key), subject, Precondition::Absent);
        match self.reservations.execute(key, vec![row], "").await {
            Ok(Executed::Applied) => StatusCode::CREATED,
            Ok(Executed::AlreadyApplied(_)) => self.repeated(),
            Ok(_) => StatusCode::GONE,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Releases the reservation of a key, whether or not it has arrived.
    async fn release(&self, key: &str) -> StatusCode {
        match self.reservations.compensate(key, vec![Write::delete(effect(key), DeleteOptions::new())]).await {
            Ok(Compensated::Applied) => {
                self.released.fetch_add(1, Ordering::Relaxed);
                StatusCode::OK
            }
            Ok(_) => StatusCode::NO_CONTENT,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn repeated(&self) -> StatusCode {
        self.repeats.fetch_add(1, Ordering::Relaxed);
        StatusCode::NO_CONTENT
    }
}

/// Returns the row of an effect.
fn effect(key: &str) -> String {
    format!("{EFFECTS}{key}")
}
