//! An order service: orders come by HTTP, and each becomes a saga over four services, which any of several processes runs.
//!
//! The processes are killed, at random or at each request that they make, and of a cluster of servers the one that leads the
//! store. Services answer too late, or refuse. Each order ends complete or compensated, each booking is made once, and each
//! customer gets the status on a reply queue. An order whose payment was refused after an attempt without an answer is stuck: an
//! operator looks whether it was paid, and lets it go on. A platform may ask `/livez`, and a load balancer `/readyz`. The last
//! line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::Write as _,
    process::{ExitCode, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use clap::Parser;
use common::{Answer, Result, answer, patiently, say, serve};
use engine::{Engine, EngineAt};
use hyper::{Request, body::Incoming};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::{
    BoxedPipeline, CallError, FailureKind, Pipeline, Verdict,
    backend::Backend,
    codec::Codec,
    entropy::Entropy,
    health::{Check, Group, Health, HealthConfig},
    queue::{Queue, QueueExt},
    queue_listener::IdleConfig,
    saga::{Action, Compensation, Executed, Participant, Plan, Saga, SagaConfig, SagaPhase, Step, StepOutcome},
    scheduler::{STATUS, Scheduler, SchedulerConfig, Submission},
    store::{DeleteOptions, InMemoryStore, Precondition, Scan, StoreExt, Write},
    time::Clock,
    timeout::Timeout,
};
use tokio::process::{Child, Command};

/// Runs orders over four services, in several processes that are killed.
#[derive(Parser, Clone)]
struct Args {
    /// Number of orders.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    orders: u32,
    /// Number of processes that run orders.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    processes: u8,
    /// Number of kills of a random process.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000))]
    kill: u32,
    /// Kills a process at each request that it makes for the first time.
    #[arg(long)]
    kill_each_request: bool,
    /// Place of the orders and their states: `sqlite:FILE`, the URL of a server, `postgres`, `redis` or `nats` for a server of
    /// this run, or `nats:3` for a cluster of three, one of which is killed. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Seed of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Address of the services, for a process that runs orders.
    #[arg(long, hide = true)]
    services: Option<String>,
}

/// Time within which an order has to be begun, and maximum time without the end of one.
const PATIENCE: Duration = Duration::from_secs(600);
/// Header with the process that makes a request.
const PROCESS: &str = "process";
/// Services in the order of the steps. The third is the pivot.
const SERVICES: [&str; 4] = ["stock", "courier", "payment", "mail"];

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (&args.services, Engine::of_parent()) {
        (Some(services), Some(engine)) => run_orders(services.clone(), &engine).await.map(|()| true),
        _ => watch(&args).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "order_service: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- a process that runs orders ---------------------------------------------------------------------------------------------

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Order {
    /// Bookings by service.
    bookings: BTreeMap<String, String>,
}

/// An answer that is no booking.
#[derive(Debug)]
enum Refusal {
    Status(u16),
    Connection(reqwest::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::Connection(error) => error.fmt(f),
        }
    }
}

fn verdict(answered: &std::result::Result<String, Refusal>) -> Verdict {
    match answered {
        Ok(_) => Verdict::success(),
        Err(Refusal::Status(400..500)) => Verdict::failure(FailureKind::Client),
        Err(Refusal::Connection(error)) if error.is_connect() => Verdict::failure(FailureKind::Connect),
        Err(_) => Verdict::failure(FailureKind::Server),
    }
}

/// An agent: a step at one service.
#[derive(Clone)]
struct Agent {
    http: reqwest::Client,
    services: String,
    calls: BoxedPipeline<String, Refusal>,
}

impl Agent {
    async fn ask(&self, step: &Step<Order>, verb: &str) -> std::result::Result<String, CallError<Refusal>> {
        let url = format!("http://{}/{}/{verb}/{}", self.services, step.name(), step.action_key());
        let ask = || async {
            let sent = self.http.post(&url).header(PROCESS, std::process::id()).send().await;
            let answered = sent.map_err(Refusal::Connection)?;
            match answered.status().as_u16() {
                200 => answered.text().await.map_err(Refusal::Connection),
                status => Err(Refusal::Status(status)),
            }
        };
        self.calls.call(ask).await
    }
}

impl Action<Order> for Agent {
    async fn execute(&self, step: &Step<Order>) -> StepOutcome<Order> {
        let (service, booked) = (step.name().to_owned(), self.ask(step, "book").await);
        step.of_call(booked, |order, booking| drop(order.bookings.insert(service, booking)))
    }
}

impl Compensation<Order> for Agent {
    async fn compensate(&self, step: &Step<Order>) -> StepOutcome<Order> {
        let (service, cancelled) = (step.name().to_owned(), self.ask(step, "cancel").await);
        step.of_call(cancelled, move |order, _| drop(order.bookings.remove(&service)))
    }
}

/// Returns the scheduler of all processes.
async fn scheduler(backend: &Backend, engine: &Engine, services: &str) -> Result<Scheduler<Order>> {
    let timeout = Timeout::new(Duration::from_millis(500));
    let calls = Pipeline::new().then(timeout).classify(verdict).boxed();
    let agent = Agent { http: reqwest::Client::new(), services: services.to_owned(), calls };
    let plan = Plan::new()
        .step(SERVICES[0], agent.clone())
        .step(SERVICES[1], agent.clone())
        .pivot(SERVICES[2], agent.clone())
        .step(SERVICES[3], agent);
    let config = SagaConfig::default();
    let config = config
        .retry(config.retry.between(Duration::from_millis(20), Duration::from_millis(500)))
        .compensation_retry(config.compensation_retry.between(Duration::from_millis(20), Duration::from_millis(500)))
        .step_timeout(Duration::from_secs(2))
        .call_timeout(Duration::from_secs(2))
        .takeover_after(Duration::from_secs(8))
        .scan_interval(Duration::from_secs(2));
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let saga = Saga::new(engine.name("order"), backend.store(), codec, plan, config)?;
    let idle = IdleConfig::between(Duration::from_millis(10), Duration::from_millis(100));
    let config = SchedulerConfig::default().visibility(Duration::from_secs(2)).idle(idle);
    let (web, replies) = (engine.name("web-1"), backend.queue(&engine.name("web-1")).await?);
    Ok(Scheduler::builder(saga, backend.queue(&engine.name("orders")).await?, config)
        .replies(move |name| (name == web).then(|| replies.clone()))
        .build()?)
}

async fn run_orders(services: String, engine: &Engine) -> Result<()> {
    let orders = patiently(async || scheduler(&engine.open().await?, engine, &services).await).await?;
    let (ran, supervised) = tokio::join!(orders.run(std::future::pending()), orders.supervise(std::future::pending()));
    ran?;
    supervised?;
    Ok(())
}

// ---- the services: each applies a request once, by its key -----------------------------------------------------------------

#[derive(Default)]
struct Services {
    bookings: Arc<InMemoryStore>,
    numbers: AtomicU64,
    /// Requests that were seen, and the processes to be killed for one.
    seen: Mutex<(BTreeSet<String>, BTreeSet<u32>)>,
    kills: bool,
}

fn row(booking: &str) -> String {
    format!("b/{booking}")
}

/// Returns the number of an order, from a key such as `order/order-17/stock`.
fn number(key: &str) -> Option<u32> {
    key.rsplit('/').nth(1)?.rsplit('-').next()?.parse().ok()
}

impl Services {
    async fn handle(&self, request: Request<Incoming>) -> Result<Answer> {
        let path = request.uri().path().trim_start_matches('/').to_owned();
        let mut parts = path.splitn(3, '/');
        let (Some(service), Some(verb), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Ok(answer(404, ""));
        };
        let process = request.headers().get(PROCESS).and_then(|id| id.to_str().ok()?.parse::<u32>().ok());
        let is_first = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let is_first = seen.0.insert(path.clone());
            if is_first && self.kills {
                seen.1.extend(process);
            }
            is_first
        };
        let bookings = Participant::new(self.bookings.clone(), service)?;
        if verb == "cancel" {
            let rows = match bookings.reply(key).await? {
                Some(booking) => vec![Write::delete(row(&String::from_utf8_lossy(&booking)), DeleteOptions::new())],
                None => Vec::new(),
            };
            bookings.compensate(key, rows).await?;
            return Ok(answer(200, "cancelled"));
        }
        // Some orders cannot be delivered, some cannot be paid.
        let refused = match number(key) {
            Some(order) if order % 7 == 3 => service == "courier",
            Some(order) if order % 11 == 5 => service == "payment",
            _ => false,
        };
        if refused {
            return Ok(answer(409, "refused"));
        }
        let booking = format!("{service}-{}", self.numbers.fetch_add(1, Relaxed));
        let rows = vec![Write::put(row(&booking), key.to_owned(), Precondition::Absent)];
        let executed = bookings.execute(key, rows, booking.clone()).await?;
        // It was done, and the answer comes too late.
        if is_first && number(key).is_some_and(|order| order % 5 == 1) {
            Clock::tokio().sleep(Duration::from_secs(1)).await;
        }
        Ok(match executed {
            Executed::Applied => answer(200, booking),
            Executed::AlreadyApplied(booking) => answer(200, String::from_utf8_lossy(&booking)),
            _ => answer(410, "cancelled before"),
        })
    }

    /// Returns the services of each order, and the number of bookings whose key has another one.
    async fn count(&self) -> Result<(BTreeMap<u32, BTreeSet<&'static str>>, usize)> {
        let (mut held, mut keys, mut all): (BTreeMap<u32, BTreeSet<_>>, _, _) = (BTreeMap::new(), BTreeSet::new(), 0);
        for service in SERVICES {
            for row in self.bookings.scan_all(Scan::partition(service).prefix("b/")).await? {
                let key = String::from_utf8_lossy(&row.value).into_owned();
                held.entry(number(&key).ok_or("a booking without an order")?).or_default().insert(service);
                keys.insert(key);
                all += 1;
            }
        }
        Ok((held, all - keys.len()))
    }
}

// ---- the control ------------------------------------------------------------------------------------------------------------

/// The processes that run orders. One that ended is replaced.
struct Pool {
    processes: Vec<Child>,
    services: String,
    kills: u32,
}

impl Pool {
    fn start(&self, engine: &Engine) -> Result<Child> {
        Ok(Command::new(std::env::current_exe()?)
            .args(["--services", &self.services])
            .envs(engine.variables())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?)
    }

    /// `kill -9`, and another process in its place.
    async fn kill(&mut self, i: usize, engine: &Engine) -> Result<()> {
        self.processes[i].kill().await?;
        self.processes[i] = self.start(engine)?;
        self.kills += 1;
        Ok(())
    }
}

/// Returns the health of the front: without its store it accepts no order, and there is no other store to ask.
fn health(orders: &Scheduler<Order>) -> Result<Health> {
    let orders = orders.clone();
    let store = move || {
        let orders = orders.clone();
        async move { orders.read("none").await.map(drop) }
    };
    let check = Check::dependency("orders", store).required();
    let config = HealthConfig::default().drain_delay(Duration::from_millis(100));
    Ok(Health::builder(config).name("orders").check(check).build()?)
}

/// Orders by HTTP: `POST /orders/NUMBER` submits, `GET` returns the status.
async fn front(orders: Scheduler<Order>, health: Health, web: String) -> Result<std::net::SocketAddr> {
    serve(move |request: Request<Incoming>| {
        let (orders, health, web) = (orders.clone(), health.clone(), web.clone());
        async move {
            match request.uri().path() {
                "/livez" => return health.answer(&Group::Liveness, request.headers()).await.map(String::into),
                "/readyz" => return health.answer(&Group::Readiness, request.headers()).await.map(String::into),
                _ => {}
            }
            let id = request.uri().path().trim_start_matches("/orders/").to_owned();
            if request.method() == hyper::Method::POST {
                let correlation_id = request.headers().get("correlation-id").and_then(|id| id.to_str().ok());
                let order = Submission::new(&id, Order::default()).reply_to(web, correlation_id.unwrap_or_default());
                return match orders.submit(order.deadline(PATIENCE)).await {
                    Ok(()) => answer(202, "accepted"),
                    Err(error) => answer(503, error),
                };
            }
            match orders.read(&id).await {
                Ok(Some(status)) => answer(200, format!("{:?}", status.phase)),
                Ok(None) => answer(404, "not started"),
                Err(error) => answer(503, error),
            }
        }
    })
    .await
}

/// Reads status messages from the private reply queue.
async fn read_replies(replies: &dyn Queue, read: &Mutex<BTreeMap<String, Vec<String>>>) -> Result<()> {
    loop {
        let Some(reply) = patiently(async || replies.receive_one(Duration::from_secs(30)).await).await? else {
            Clock::tokio().sleep(Duration::from_millis(20)).await;
            continue;
        };
        let header = |name: &str| reply.headers.get(name).cloned().unwrap_or_default();
        let (request, status) = (header("correlation-id"), header(STATUS));
        read.lock().unwrap_or_else(PoisonError::into_inner).entry(request).or_default().push(status);
        // Without an answer it may come again.
        let _ = replies.complete(&reply.receipt).await;
    }
}

/// An operator's work: looks whether the orders that are stuck were paid. Returns their number.
async fn resolve(orders: &Scheduler<Order>, services: &Services) -> Result<usize> {
    let (held, _) = services.count().await?;
    let open = orders.saga().list_open().await?;
    let stuck: Vec<_> = open.into_iter().filter(|(_, is_stuck)| *is_stuck).map(|(id, _)| id).collect();
    for id in &stuck {
        let number = id.rsplit('-').next().and_then(|number| number.parse().ok()).ok_or("no number of an order")?;
        let is_paid = held.get(&number).is_some_and(|services| services.contains(SERVICES[2]));
        say(format!("  {id} is stuck; an operator finds it {}", if is_paid { "paid" } else { "not paid" }));
        match is_paid {
            true => orders.saga().retry(id).await?,
            false => orders.saga().undo(id, SERVICES[2], "the bank has no payment").await?,
        };
    }
    Ok(stuck.len())
}

async fn watch(args: &Args) -> Result<bool> {
    let (folder, clock, entropy) = (tempfile::tempdir()?, Clock::tokio(), Entropy::from_seed(args.seed));
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "orders.db")?;
    let backend = engine.open().await?;
    let services = Arc::new(Services { kills: args.kill_each_request, ..Services::default() });
    let address = serve({
        let services = services.clone();
        move |request| {
            let services = services.clone();
            async move { services.handle(request).await.unwrap_or_else(|error| answer(500, error)) }
        }
    })
    .await?;
    let orders = scheduler(&backend, &engine, &address.to_string()).await?;
    let health = health(&orders)?;
    let front = front(orders.clone(), health.clone(), engine.name("web-1")).await?;
    let replies = backend.queue(&engine.name("web-1")).await?;

    let mut pool = Pool { processes: Vec::new(), services: address.to_string(), kills: 0 };
    for _ in 0..args.processes {
        pool.processes.push(pool.start(&engine)?);
    }
    say(format!("  {} orders, {} processes on one {}", args.orders, args.processes, engine.place()));
    let http = reqwest::Client::new();
    // As a load balancer does, before it sends requests.
    let ready = http.get(format!("http://{front}/readyz")).send().await?;
    if ready.status() != 200 || ready.text().await? != "healthy" {
        return Err("the front is not ready".into());
    }
    let read: Mutex<BTreeMap<String, Vec<String>>> = Mutex::default();
    for number in 0..args.orders {
        // A customer that is not sure asks again, under the same number.
        for _ in 0..1 + number % 2 {
            let post = http.post(format!("http://{front}/orders/order-{number}"));
            let accepted = post.header("correlation-id", format!("request-{number}")).send().await?;
            if accepted.status() != 202 {
                return Err(format!("order {number} was not accepted: {}", accepted.text().await?).into());
            }
        }
    }
    let began = clock.now();
    let has_end = |told: &Vec<String>| told.iter().any(|status| status != "received");
    let watched = async {
        let (mut next_kill, mut last, mut since) = (clock.now(), 0, began);
        loop {
            clock.sleep(Duration::from_millis(10)).await;
            let to_kill = std::mem::take(&mut services.seen.lock().unwrap_or_else(PoisonError::into_inner).1);
            for id in to_kill {
                if let Some(i) = pool.processes.iter().position(|process| process.id() == Some(id)) {
                    pool.kill(i, &engine).await?;
                }
            }
            if pool.kills < args.kill && clock.now() >= next_kill {
                pool.kill(entropy.up_to(u64::from(args.processes) - 1) as usize, &engine).await?;
                next_kill = clock.now() + Duration::from_millis(100 + entropy.up_to(300));
            }
            let ended =
                read.lock().unwrap_or_else(PoisonError::into_inner).values().filter(|told| has_end(told)).count();
            if ended != std::mem::replace(&mut last, ended) {
                since = clock.now();
            }
            let is_over = ended == args.orders as usize && pool.kills >= args.kill;
            if is_over || clock.now() - since > PATIENCE {
                return Ok::<_, common::Failure>(());
            }
        }
    };
    let leaderless = async { Ok(engine.lose_leader(Duration::from_secs(2)).await) };
    let servers_killed = tokio::select! {
        watched = async { tokio::try_join!(watched, leaderless) } => watched?.1,
        failed = read_replies(&*replies, &read) => return failed.map(|()| false),
    };
    let took = clock.now() - began;
    // Messages that were delivered before a kill come back, and repeated replies arrive.
    let queue = backend.queue(&engine.name("orders")).await?;
    let settled = async {
        clock.sleep(Duration::from_secs(4)).await;
        // One after the other, if several were delivered to a process that was killed.
        let until = clock.now() + PATIENCE;
        while patiently(async || queue.depth().await).await?.total() > 0 && clock.now() < until {
            clock.sleep(Duration::from_millis(50)).await;
        }
        Ok::<_, common::Failure>(())
    };
    tokio::select! {
        failed = read_replies(&*replies, &read) => failed?,
        settled = settled => settled?,
    }

    // Whatever happened to the processes, the front needed no restart; before its end it tells load balancers.
    health.stopping().await;
    let probe = async |path: &str| {
        Ok::<_, common::Failure>(http.get(format!("http://{front}{path}")).send().await?.status().as_u16())
    };
    let probes = (probe("/livez").await?, probe("/readyz").await?);
    let by_operator = resolve(&orders, &services).await?;
    let (held, doubled) = services.count().await?;
    let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
    let mut half_done = 0;
    for number in 0..args.orders {
        let status = orders.read(&format!("order-{number}")).await?;
        let (name, expected) = match status.map(|status| status.phase) {
            Some(SagaPhase::Completed) => ("completed", SERVICES.len()),
            Some(SagaPhase::Compensated) => ("compensated", 0),
            Some(SagaPhase::Stuck) => ("stuck", held.get(&number).map_or(0, BTreeSet::len)),
            _ => ("open", usize::MAX),
        };
        *phases.entry(name).or_default() += 1;
        half_done += usize::from(held.get(&number).map_or(0, BTreeSet::len) != expected);
    }
    let of = |name: &str| phases.get(name).copied().unwrap_or_default();
    let read = read.into_inner().unwrap_or_else(PoisonError::into_inner);
    let lost = (0..args.orders).filter(|n| !read.get(&format!("request-{n}")).is_some_and(&has_end)).count();
    let repeated: usize = read.values().map(|told| told.len().saturating_sub(2)).sum();
    let left = queue.depth().await?.total();
    say(format!(
        "  all have ended after {:.1} s, {} kills, {repeated} status messages came again",
        took.as_secs_f64(),
        pool.kills
    ));
    let summary: Value = json!({ "orders": args.orders, "completed": of("completed"), "compensated": of("compensated"),
        "stuck": of("stuck"), "open": of("open"), "double_bookings": doubled, "half_done": half_done,
        "by_operator": by_operator, "replies_lost": lost, "replies_repeated": repeated, "left": left, "kills": pool.kills,
        "servers_killed": servers_killed });
    say(format!("\nsummary: {summary}"));
    let ended = of("completed") + of("compensated") + of("stuck");
    Ok(ended == args.orders as usize && (doubled, half_done, lost, left) == (0, 0, 0, 0) && probes == (200, 503))
}
