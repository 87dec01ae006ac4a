//! A slow product catalogue that sometimes fails, over HTTP, and two processes that share a cache of it.
//!
//! Each process has a local tier; the remote tier and the notices are in one SQLite file, or on the server of `--backend`. Shown
//! are hits, one load under a stampede, stale answers while the catalogue is down, and updates that the other process sees. The last
//! line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/engine.rs"]
mod engine;

use std::{
    convert::Infallible,
    error::Error,
    io::{self, Write as _},
    net::SocketAddr,
    process::{ExitCode, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use clap::Parser;
use engine::{Engine, EngineAt};
use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, StatusCode, body::Bytes, body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use serde_json::{Value, json};
use steadfast::{
    Pipeline,
    cache_aside::{CacheAside, CacheAsideConfig, CacheAsideStats, RemoteConfig, StaleConfig},
    call::idempotent,
    codec::Codec,
    retry::{Retry, RetryConfig},
    time::Clock,
    timeout::Timeout,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpListener,
    process::{Child, ChildStdin, ChildStdout, Command},
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Latency of the catalogue.
const SLOW: Duration = Duration::from_millis(40);
const PRODUCTS: u64 = 20;
/// Concurrent callers for one product, in each process.
const STAMPEDE: usize = 1_000;

/// Two processes share a cache of a slow catalogue that fails.
#[derive(Parser)]
struct Args {
    /// Number of price changes while both processes read.
    #[arg(long, default_value_t = 20)]
    updates: u64,
    /// Place of the remote tier: `sqlite:FILE`, the URL of a server (`postgres://..`, `redis://..`, `nats://..`), or `postgres`,
    /// `redis`, `nats` or `nats:3` (a cluster of three) for servers of this run. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    #[arg(long, hide = true)]
    catalogue: Option<SocketAddr>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (args.catalogue, Engine::of_parent()) {
        (Some(catalogue), Some(engine)) => be_a_shop(catalogue, &engine).await.map(|()| true),
        _ => show(args.updates, args.backend.as_ref()).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "cache_aside: {error}");
            ExitCode::FAILURE
        }
    }
}

fn config() -> CacheAsideConfig {
    let second = Duration::from_secs(1);
    CacheAsideConfig::default()
        .ttl(second * 2)
        .jitter(second / 5)
        .stale(StaleConfig::new(second * 60).throttle(second / 4))
        .hard_timeout(Some(second * 20))
        // One load for both processes, also on a busy machine.
        .remote(RemoteConfig::default().local_ttl(second / 2).timeout(second * 5).wait(second * 10))
}

// ---- a process that sells ---------------------------------------------------------------------------------------------------

type Http = Client<HttpConnector, Full<Bytes>>;

async fn be_a_shop(catalogue: SocketAddr, engine: &Engine) -> Result<()> {
    let backend = engine.open().await?;
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let prices: CacheAside<u64, u64> = CacheAside::builder(config())
        .name(engine.name("prices"))
        .remote(backend.store(), codec)
        .backplane(backend.notifier())
        .build()?;
    // Receives notices of the other process, and repeats failed invalidations.
    tokio::spawn({
        let prices = prices.clone();
        async move { prices.run(std::future::pending()).await }
    });
    let http: Http = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    // One load for all waiting callers: a retry here serves a thousand callers.
    let pipeline = Pipeline::new()
        .then(Timeout::new(Duration::from_secs(10)))
        .then(Retry::new(RetryConfig::interactive())?)
        .then(Timeout::new(Duration::from_secs(5)));

    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Some(command) = commands.next_line().await? {
        let command: Value = serde_json::from_str(&command)?;
        let product = command["product"].as_u64().unwrap_or_default();
        let load = || {
            let (http, pipeline) = (http.clone(), pipeline.clone());
            async move {
                let read = idempotent(|| ask(&http, catalogue, Method::GET, product, None));
                pipeline.call(read).await.map_err(|e| e.to_string())
            }
        };
        let answer = match command["do"].as_str() {
            Some("get") => match prices.get_or_load(&product, load).await {
                Ok(cents) => json!({ "cents": cents }),
                Err(error) => json!({ "error": error.to_string() }),
            },
            Some("stampede") => {
                let gets = join_all((0..STAMPEDE).map(|_| prices.get_or_load(&product, load))).await;
                json!({ "answered": gets.iter().filter(|got| got.is_ok()).count() })
            }
            Some("update") => {
                let cents = command["cents"].as_u64();
                let write = ask(&http, catalogue, Method::PUT, product, cents);
                json!({ "written": prices.update(&product, write).await.is_ok() })
            }
            _ => stats(&prices.stats()),
        };
        writeln!(io::stdout().lock(), "{answer}")?;
    }
    Ok(())
}

fn stats(stats: &CacheAsideStats) -> Value {
    json!({ "hits": stats.hits, "misses": stats.misses, "stale": stats.stale_hits, "remote": stats.remote_hits, "loads": stats.loads })
}

/// Reads a price from the catalogue, or sets it.
async fn ask(http: &Http, catalogue: SocketAddr, method: Method, product: u64, cents: Option<u64>) -> Result<u64> {
    let body = cents.map(|cents| cents.to_string()).unwrap_or_default();
    let request = Request::builder().method(method).uri(format!("http://{catalogue}/products/{product}"));
    let response = http.request(request.body(Full::new(body.into()))?).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    if status.is_success() { Ok(std::str::from_utf8(&body)?.parse()?) } else { Err(format!("HTTP {status}").into()) }
}

// ---- the catalogue ----------------------------------------------------------------------------------------------------------

struct Catalogue {
    cents: Mutex<Vec<u64>>,
    is_down: AtomicBool,
    asked: AtomicU64,
    clock: Clock,
}

impl Catalogue {
    async fn open() -> Result<(Arc<Self>, SocketAddr)> {
        let cents = Mutex::new((0..=PRODUCTS).map(|product| 1000 + product).collect());
        let (is_down, asked) = (AtomicBool::new(false), AtomicU64::new(0));
        let catalogue = Arc::new(Self { cents, is_down, asked, clock: Clock::tokio() });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, serving) = (listener.local_addr()?, catalogue.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let catalogue = serving.clone();
                let service = service_fn(move |request| answer(catalogue.clone(), request));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Ok((catalogue, address))
    }

    fn cents(&self, product: u64) -> u64 {
        let cents = self.cents.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        cents.get(product as usize).copied().unwrap_or_default()
    }
}

async fn answer(
    catalogue: Arc<Catalogue>,
    request: Request<Incoming>,
) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let product: u64 = request.uri().path().rsplit('/').next().and_then(|id| id.parse().ok()).unwrap_or(u64::MAX);
    let reads = request.method() == Method::GET;
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if reads {
        catalogue.asked.fetch_add(1, SeqCst);
    } else if let Some(cents) = std::str::from_utf8(&body).ok().and_then(|text| text.parse().ok()) {
        let mut all = catalogue.cents.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.get_mut(product as usize).map(|old| *old = cents).unwrap_or_default();
    }
    // The answer has the price from the beginning of the request: a change in between makes it stale.
    let cents = catalogue.cents(product);
    catalogue.clock.sleep(SLOW).await;
    let mut response = Response::new(Full::new(cents.to_string().into()));
    if catalogue.is_down.load(SeqCst) {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(response)
}

// ---- the control ------------------------------------------------------------------------------------------------------------

/// A selling process, and the connection to it.
struct Shop {
    _child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Shop {
    fn open(catalogue: SocketAddr, engine: &Engine) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--catalogue", &catalogue.to_string()])
            .envs(engine.variables())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or("a process without pipes")?;
        Ok(Self { _child: child, stdin, lines: BufReader::new(stdout).lines() })
    }

    async fn tell(&mut self, what: &str, product: u64, cents: u64) -> Result<Value> {
        let command = json!({ "do": what, "product": product, "cents": cents });
        self.stdin.write_all(format!("{command}\n").as_bytes()).await?;
        Ok(serde_json::from_str(&self.lines.next_line().await?.ok_or("a process has ended by itself")?)?)
    }

    /// Returns the price at which the process would sell.
    async fn get(&mut self, product: u64) -> Result<u64> {
        let answer = self.tell("get", product, 0).await?;
        answer["cents"].as_u64().ok_or_else(|| answer["error"].to_string().into())
    }
}

async fn show(updates: u64, backend: Option<&EngineAt>) -> Result<bool> {
    let (folder, clock) = (tempfile::tempdir()?, Clock::tokio());
    let engine = EngineAt::start_shared(backend, folder.path(), "cache.db")?;
    drop(engine.open().await?); // so that both find it made
    let (catalogue, address) = Catalogue::open().await?;
    let mut shops = [Shop::open(address, &engine)?, Shop::open(address, &engine)?];
    let loads = || catalogue.asked.load(SeqCst);
    let say = |what: String| writeln!(io::stdout().lock(), "{what}");
    let mut gets = 0;

    say(format!("\ntwo processes, one catalogue that takes {SLOW:?} for an answer\n"))?;
    for round in ["the first asks", "and again", "the other asks"] {
        let (before, start) = (loads(), clock.now());
        for product in 0..PRODUCTS {
            shops[usize::from(round == "the other asks")].get(product).await?;
            gets += 1;
        }
        let (asked, took) = (loads() - before, clock.now() - start);
        say(format!("  {round:<16} {PRODUCTS} gets, {asked:>2} loads, {:>4} ms", took.as_millis()))?;
    }

    let (before, start) = (loads(), clock.now());
    let [one, other] = &mut shops;
    let (first, second) = tokio::try_join!(one.tell("stampede", PRODUCTS, 0), other.tell("stampede", PRODUCTS, 0))?;
    let answered = first["answered"].as_u64().unwrap_or(0) + second["answered"].as_u64().unwrap_or(0);
    let stampede = loads() - before;
    gets += answered;
    say(format!(
        "  a stampede       {answered} gets, {stampede:>2} loads, {:>4} ms",
        (clock.now() - start).as_millis()
    ))?;

    // All copies expire; then only expired values are available.
    clock.sleep(Duration::from_millis(2500)).await;
    catalogue.is_down.store(true, SeqCst);
    let (before, mut right) = (loads(), 0_usize);
    for product in 0..PRODUCTS {
        let [one, other] = &mut shops;
        let (one, other) = tokio::join!(one.get(product), other.get(product));
        gets += 2;
        right +=
            [one, other].into_iter().filter(|got| got.as_ref().is_ok_and(|cents| *cents == 1000 + product)).count();
    }
    catalogue.is_down.store(false, SeqCst);
    say(format!(
        "  it is down       {} gets, {right} answered with expired values, {} tries to load",
        PRODUCTS * 2,
        loads() - before
    ))?;
    let mut stale_served = 0;
    for shop in &mut shops {
        stale_served += shop.tell("stats", 0, 0).await?["stale"].as_u64().unwrap_or(0);
    }

    // Both processes change prices in turn, and read all the time.
    clock.sleep(Duration::from_millis(300)).await;
    let (mut old, mut heard) = (0, Vec::new());
    for n in 0..updates {
        let (product, by) = (n % PRODUCTS, (n % 2) as usize);
        let cents = 5000 + n;
        for shop in &mut shops {
            shop.get(product).await?;
        }
        let written = shops[by].tell("update", product, cents).await?;
        if written["written"] != true {
            return Err("the catalogue did not take a price".into());
        }
        let returned = clock.now();
        gets += 3;
        old += u64::from(shops[by].get(product).await? != cents); // in the process that changed it: at once
        // The other process sees the new price after the notice, or at the latest after its local time to live, and never the old one again.
        let bound = returned + Duration::from_millis(550);
        loop {
            let asked = clock.now();
            gets += 1;
            if shops[1 - by].get(product).await? == cents {
                break;
            }
            if asked > bound {
                old += 1;
                break;
            }
        }
        heard.push((clock.now() - returned).as_millis());
        for shop in &mut shops {
            gets += 1;
            old += u64::from(shop.get(product).await? != cents);
        }
    }
    let latest = heard.iter().max().copied().unwrap_or(0);
    say(format!(
        "  {updates} updates       seen by the other process within {latest} ms; {old} gets returned invalidated values\n"
    ))?;

    for (name, shop) in ["first", "other"].iter().zip(&mut shops) {
        let s = shop.tell("stats", 0, 0).await?;
        say(format!(
            "  the {name}: {} hits, {} misses, {} from the other's loads, {} loads, {} stale",
            s["hits"], s["misses"], s["remote"], s["loads"], s["stale"]
        ))?;
    }
    let summary = json!({
        "gets": gets, "loads": loads(), "stampede_loads": stampede, "stale_served": stale_served,
        "stale_after_invalidation": old, "updates": updates, "heard_within_ms": latest,
    });
    say(format!("\nsummary: {summary}"))?;
    Ok(old == 0
        && stampede == 1
        && answered == 2 * STAMPEDE as u64
        && right as u64 == 2 * PRODUCTS
        && stale_served == 2 * PRODUCTS)
}
