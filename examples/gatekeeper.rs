//! An exposed gate and a trusted host, in two processes that are killed, and an attacker between them.
//!
//! The gate checks requests, seals what it parsed, and hands it over by call and by queue. The host opens each seal once. The
//! attacker records what the gate sends, repeats and alters it, and sends requests that the gate must refuse. The last line
//! is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    pin::Pin,
    process::{ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::post,
};
use clap::Parser;
use common::{Result, say};
use engine::{Engine, EngineAt};
use http::StatusCode;
use hyper::body::{Bytes, Frame};
use serde::{Deserialize, Serialize};
use serde_json::json;
use steadfast::{
    codec::Codec,
    entropy::Entropy,
    gatekeeper::{HandOver, HandOverConfig, OpenError, TrustedHost, TrustedHostConfig},
    queue::{Message, Queue, SendOnly},
    queue_listener::{Disposition, IdleConfig, QueueListener, QueueListenerConfig, Work},
    time::Clock,
    token::{Key, KeyRing},
    tower::{GateConfig, GateLayer, GateRules},
};
use tokio::{
    net::TcpListener,
    process::{Child, Command},
};

/// Hands orders from a gate to a host, while both are killed and an attacker repeats and alters what it sees.
#[derive(Parser, Clone)]
struct Args {
    /// Number of orders, half of them by call and half by queue.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    orders: u32,
    /// Number of kills of a random process.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=1_000))]
    kills: u32,
    /// Place of the queue and of the used seals: `sqlite:FILE`, the URL of a server, or `postgres`, `redis` or `nats` for a
    /// server of this run. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Seed of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Part that this process plays, and folder of the logs.
    #[arg(long, hide = true, requires = "folder")]
    role: Option<String>,
    #[arg(long, hide = true)]
    folder: Option<PathBuf>,
    /// Ports of the gate and of the host.
    #[arg(long, hide = true, num_args = 2)]
    ports: Vec<u16>,
}

/// The private key of RFC 8410, which is no secret; a service reads its own from a file.
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
-----END PRIVATE KEY-----";
/// Its public half, which is all that the host has.
const PUBLIC: [u8; 32] = [
    0x19, 0xbf, 0x44, 0x09, 0x69, 0x84, 0xcd, 0xfe, 0x85, 0x41, 0xba, 0xc1, 0x67, 0xdc, 0x3b, 0x96, 0xc8, 0x50, 0x86,
    0xaa, 0x30, 0xb6, 0xb6, 0xcb, 0x0c, 0x5c, 0x38, 0xad, 0x70, 0x31, 0x66, 0xe1,
];
const PATIENCE: Duration = Duration::from_secs(120);
const HOUR: Duration = Duration::from_secs(3600);
/// Orders of the attacker begin here.
const FORGED: u32 = 1_000_000;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    number: u32,
}

fn codec() -> Codec<Order> {
    Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (args.role.as_deref(), &args.folder, Engine::of_parent()) {
        (Some("gate"), Some(folder), Some(engine)) => run_gate(&args, folder, &engine).await.map(|()| true),
        (Some(_), Some(folder), Some(engine)) => run_host(&args, folder, &engine).await.map(|()| true),
        _ => watch(&args).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "gatekeeper: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A log to which several processes append, each line by one write.
#[derive(Clone)]
struct Log(Arc<fs::File>);

impl Log {
    fn open(folder: &Path, name: &str) -> Result<Self> {
        Ok(Self(Arc::new(fs::OpenOptions::new().append(true).create(true).open(folder.join(name))?)))
    }

    fn write(&self, line: &str) {
        let _ = (&*self.0).write_all(format!("{line}\n").as_bytes());
    }
}

async fn serve(port: u16, app: Router) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    Ok(axum::serve(listener, app).await?)
}

// ---- the gate ---------------------------------------------------------------------------------------------------------------

#[derive(Clone)]
struct Gate {
    hand_over: HandOver<Order>,
    queue: SendOnly,
    host: String,
    client: reqwest::Client,
    wire: Log,
}

async fn run_gate(args: &Args, folder: &Path, engine: &Engine) -> Result<()> {
    let queue = engine.open().await?.queue(&engine.name("orders")).await?;
    let ring = KeyRing::new([Key::private("gate-1", KEY.as_bytes())?])?;
    let gate = Gate {
        // So long that a repeated seal is refused as used, and not as expired.
        hand_over: HandOver::new("orders", ring, codec(), HandOverConfig::default().call_lifetime(HOUR))?,
        queue: SendOnly::new(queue),
        host: format!("http://127.0.0.1:{}/open", args.ports[1]),
        client: reqwest::Client::new(),
        wire: Log::open(folder, "wire")?,
    };
    let rules = GateRules::new().post("/calls").json().max_body(1024).post("/orders").json().max_body(1024);
    let app = Router::new()
        .route("/calls", post(call))
        .route("/orders", post(send))
        .layer(GateLayer::new(rules, GateConfig::default())?)
        .layer(from_fn_with_state(Log::open(folder, "refused")?, count))
        .with_state(gate);
    serve(args.ports[0], app).await
}

async fn call(State(gate): State<Gate>, body: Bytes) -> StatusCode {
    let Ok(order) = serde_json::from_slice(&body) else { return StatusCode::UNPROCESSABLE_ENTITY };
    let Ok(sealed) = gate.hand_over.seal(&order) else { return StatusCode::INTERNAL_SERVER_ERROR };
    gate.wire.write(&format!("call {}", line_of(&sealed)));
    match gate.client.post(&gate.host).body(sealed).send().await {
        Ok(answer) => answer.status(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn send(State(gate): State<Gate>, body: Bytes) -> StatusCode {
    let Ok(order) = serde_json::from_slice(&body) else { return StatusCode::UNPROCESSABLE_ENTITY };
    match gate.hand_over.send(&gate.queue, &order).await {
        Ok(_) => StatusCode::ACCEPTED,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Writes down how many bytes were read of the body of each refused request.
async fn count(State(log): State<Log>, request: Request, next: Next) -> Response {
    let read = Arc::new(AtomicU64::new(0));
    let counted = read.clone();
    let answer = next.run(request.map(|body| Body::new(Counted { body, read: counted }))).await;
    if answer.status().is_client_error() {
        log.write(&format!("{} {}", answer.status().as_u16(), read.load(SeqCst)));
    }
    answer
}

/// A body that counts what is read of it.
struct Counted {
    body: Body,
    read: Arc<AtomicU64>,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.read.fetch_add(frame.data_ref().map_or(0, |data| data.len() as u64), SeqCst);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

// ---- the trusted host -------------------------------------------------------------------------------------------------------

/// Returns a seal and its content as one line.
fn line_of(sealed: &[u8]) -> String {
    String::from_utf8_lossy(sealed).replace('\n', " ")
}

/// Returns the end of a seal, which tells it from others.
fn seal_of(sealed: &[u8]) -> String {
    let seal = sealed.split(|byte| *byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(&seal[seal.len().saturating_sub(24)..]).into_owned()
}

async fn run_host(args: &Args, folder: &Path, engine: &Engine) -> Result<()> {
    let backend = engine.open().await?;
    let (keys, config) =
        (KeyRing::new([Key::public("gate-1", &PUBLIC)?])?, TrustedHostConfig::default().max_lifetime(HOUR));
    let host = TrustedHost::new("orders", keys, backend.store(), codec(), config)?;
    let (log, wire) = (Log::open(folder, "opened")?, Log::open(folder, "wire")?);
    let orders = backend.queue(&engine.name("orders")).await?;
    let attacked = SendOnly::new(orders.clone());
    let state = (host.clone(), log.clone());
    let app = Router::new().route("/open", post(open)).with_state(state);
    let calls = tokio::spawn({
        let port = args.ports[1];
        async move { serve(port, app).await.map_err(|error| error.to_string()) }
    });
    let config = QueueListenerConfig::default()
        .visibility(Duration::from_secs(2))
        .idle(IdleConfig::between(Duration::from_millis(10), Duration::from_millis(100)));
    let listener = QueueListener::new(orders, config)?;
    let handles = listener.run(std::future::pending(), async |work: Work| {
        // The attacker reads the queue, and sends a copy of each third message before it is opened.
        if work.headers.is_empty() {
            wire.write(&format!("queue {}", line_of(&work.body)));
            if seal_of(&work.body).bytes().map(u32::from).sum::<u32>() % 3 == 0 {
                let copy = Message::new(work.body.clone()).header("copy", "yes");
                if attacked.send(copy).await.is_ok() {
                    wire.write("copy -");
                }
            }
        }
        match host.open_message(&work).await {
            Ok(order) => {
                log.write(&format!("queue {} {} {}", order.number, seal_of(&work.body), work.id));
                Disposition::Complete
            }
            Err(error @ OpenError::Unavailable { .. }) => Disposition::retry(error),
            Err(error) => Disposition::dead_letter(error),
        }
    });
    tokio::select! {
        ended = calls => Ok(ended??),
        ended = handles => Ok(ended.map(drop)?),
    }
}

async fn open(State((host, log)): State<(TrustedHost<Order>, Log)>, body: Bytes) -> StatusCode {
    match host.open(&body).await {
        Ok(order) => {
            log.write(&format!("call {} {} -", order.number, seal_of(&body)));
            StatusCode::OK
        }
        Err(OpenError::Unavailable { .. }) => StatusCode::SERVICE_UNAVAILABLE,
        Err(_) => StatusCode::FORBIDDEN,
    }
}

// ---- the control, and the attacker ------------------------------------------------------------------------------------------

/// The two processes. One that was killed is replaced.
struct Processes {
    running: Vec<Child>,
    folder: PathBuf,
    ports: Vec<u16>,
    kills: u32,
}

impl Processes {
    fn start(&self, role: &str, engine: &Engine) -> Result<Child> {
        let ports = self.ports.iter().map(u16::to_string);
        Ok(Command::new(std::env::current_exe()?)
            .args(["--role", role, "--folder"])
            .arg(&self.folder)
            .arg("--ports")
            .args(ports)
            .envs(engine.variables())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?)
    }

    /// `kill -9`, and another process in its place.
    async fn kill(&mut self, at: usize, engine: &Engine) -> Result<()> {
        self.running[at].kill().await?;
        self.running[at] = self.start(["gate", "host"][at], engine)?;
        self.kills += 1;
        Ok(())
    }
}

/// Sends until the answer is final: the client of an order repeats it.
async fn until_answered(client: &reqwest::Client, clock: &Clock, url: &str, body: String) -> Result<u16> {
    let until = clock.now() + PATIENCE;
    while clock.now() < until {
        let request = client.post(url).header("content-type", "application/json").body(body.clone());
        match request.send().await {
            Ok(answer) if answer.status() != 503 => return Ok(answer.status().as_u16()),
            _ => clock.sleep(Duration::from_millis(50)).await,
        }
    }
    Err(format!("no answer from {url}").into())
}

fn lines(folder: &Path, name: &str) -> Result<Vec<String>> {
    Ok(fs::read_to_string(folder.join(name)).unwrap_or_default().lines().map(str::to_owned).collect())
}

async fn watch(args: &Args) -> Result<bool> {
    let (folder, clock, entropy) = (tempfile::tempdir()?, Clock::tokio(), Entropy::from_seed(args.seed));
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "orders.db")?;
    let queue: Arc<dyn Queue> = engine.open().await?.queue(&engine.name("orders")).await?;
    let mut ports = Vec::new();
    for _ in 0..2 {
        ports.push(TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port());
    }
    let (gate, host) = (format!("http://127.0.0.1:{}", ports[0]), format!("http://127.0.0.1:{}/open", ports[1]));
    let mut all = Processes { running: Vec::new(), folder: folder.path().to_owned(), ports, kills: 0 };
    for role in ["gate", "host"] {
        let process = all.start(role, &engine)?;
        all.running.push(process);
    }
    say(format!("  {} orders through a gate to a host, on one {}", args.orders, engine.place()));

    let client = reqwest::Client::builder().timeout(Duration::from_secs(30)).build()?;
    let mut accepted = BTreeSet::new();
    let sends = async {
        for number in 0..args.orders {
            let path = if number % 2 == 0 { "calls" } else { "orders" };
            let body = json!({ "number": number }).to_string();
            let status = until_answered(&client, &clock, &format!("{gate}/{path}"), body).await?;
            if status == 200 || status == 202 {
                accepted.insert(number);
            }
            // So that kills fall between orders, too.
            clock.sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, common::Failure>(())
    };
    let kills = async {
        while all.kills < args.kills {
            clock.sleep(Duration::from_millis(50 + entropy.up_to(300))).await;
            all.kill(entropy.up_to(1) as usize, &engine).await?;
        }
        Ok::<_, common::Failure>(())
    };
    tokio::try_join!(sends, kills)?;

    // What was seen on the way to the host comes again, and with other contents.
    let (mut repeated, mut altered, mut copied) = (0, 0, 0);
    let seen: BTreeSet<_> = lines(folder.path(), "wire")?.into_iter().collect();
    for line in lines(folder.path(), "wire")? {
        copied += u32::from(line == "copy -");
    }
    for line in seen {
        let [_, seal, content] = line.split(' ').collect::<Vec<_>>()[..] else { continue };
        let same = format!("{seal}\n{content}");
        let other = format!("{seal}\n{}", json!({ "number": FORGED + repeated }));
        until_answered(&client, &clock, &host, same.clone()).await?;
        until_answered(&client, &clock, &host, other.clone()).await?;
        let by_queue = [same, other].map(|body| Message::new(body).header("copy", "yes"));
        queue.send(by_queue.into()).await?;
        (repeated, altered) = (repeated + 2, altered + 2);
    }
    // Requests that the gate refuses, each with a body that it must not read.
    let (mut refused, big) = (0, "x".repeat(2000));
    for (path, kind, body) in [
        ("/orders", "application/json", big.as_str()),
        ("/orders", "text/plain", "{\"number\":1}"),
        ("/orders%2f..%2fadmin", "application/json", "{\"number\":1}"),
        ("//orders", "application/json", "{\"number\":1}"),
        ("/admin", "application/json", "{\"number\":1}"),
    ] {
        for method in [http::Method::POST, http::Method::PUT] {
            let request = client.request(method, format!("{gate}{path}")).header("content-type", kind);
            // The gate closes the connection, perhaps before the body is sent.
            if let Ok(answer) = request.body(body.to_owned()).send().await
                && !answer.status().is_client_error()
            {
                return Err(format!("{path}: {}", answer.status()).into());
            }
            refused += 1;
        }
    }
    // Until the queue is empty.
    let until = clock.now() + PATIENCE;
    while queue.depth().await?.total() > 0 && clock.now() < until {
        clock.sleep(Duration::from_millis(50)).await;
    }

    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut opened = BTreeSet::new();
    let (mut replays_accepted, mut altered_accepted, mut by_call) = (0, 0, BTreeSet::new());
    for line in lines(folder.path(), "opened")? {
        let [way, number, seal, message] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("the log has {line:?}").into());
        };
        let number: u32 = number.parse()?;
        opened.insert(number);
        altered_accepted += u32::from(number >= FORGED);
        // By call once, by queue for one message.
        let again = way == "call" && !by_call.insert(seal.to_owned());
        let users = users.entry(seal.to_owned()).or_default();
        users.insert(format!("{way} {message}"));
        replays_accepted += u32::from(again) + u32::from(users.len() > 1);
    }
    let lost = accepted.difference(&opened).count();
    let read = lines(folder.path(), "refused")?;
    // Those of the gate's rules; an order that is no JSON was read.
    let bytes_read_of_refused: u64 = read.iter().filter_map(|line| line.split_once(' ')?.1.parse::<u64>().ok()).sum();
    let dead = queue.dead_letters().ok_or("no dead letters")?.depth().await?.total();
    say(format!(
        "  {} kills; the attacker copied {copied} unopened messages, repeated {repeated} seals and altered {altered}; {} \
         refused requests were counted",
        all.kills,
        read.len()
    ));
    let summary = json!({ "requests": args.orders, "refused": refused, "opened": opened.len(),
        "replays_accepted": replays_accepted, "altered_accepted": altered_accepted,
        "bytes_read_of_refused": bytes_read_of_refused, "lost": lost, "kills": all.kills, "copied": copied,
        "repeated": repeated, "altered": altered, "dead": dead });
    say(format!("\nsummary: {summary}"));
    let harmless = (replays_accepted, altered_accepted, bytes_read_of_refused, lost) == (0, 0, 0, 0);
    let whole = accepted.len() == args.orders as usize && opened.len() == accepted.len() && !read.is_empty();
    Ok(harmless && whole && all.kills == args.kills && dead >= u64::from(repeated))
}
