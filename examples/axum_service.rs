//! A shop on axum under overload, which calls a second server that is sometimes slow or fails.
//!
//! Both servers and the load are in this process, on loopback. Each tenant has a quota (429), load above the shop's
//! capacity is shed by priority (503), the second server is called through a pipeline, and `/metrics` has the
//! figures. A platform asks `/livez` and `/readyz` all the time; readiness ends before the shop stops. The last line is
//! the result as JSON; the exit code is 0 if all assertions hold.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{
    collections::BTreeMap,
    error::Error,
    future::ready,
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use clap::Parser;
use futures::future::join_all;
use http::{HeaderMap, HeaderName, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::{client::legacy, rt::TokioExecutor};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use steadfast::{
    FailureKind, Pipeline, Priority, Verdict,
    call::AttemptInfo,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    config::Secret,
    health::{Check, Group, Health, HealthConfig},
    http::{ByStatus, kind_by_source, refusal, status_of},
    metrics::{CallMeter, Metrics},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, KeyedRateLimiter, Quota, Shedder, ShedderConfig},
    time::Clock,
    timeout::Timeout,
    tower::{HttpRequests, PipelineLayer, ReceivedRequests},
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tower_layer::Layer;
use tower_service::Service;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
type Http = legacy::Client<legacy::connect::HttpConnector, Empty<Bytes>>;

const TENANT: &str = "x-tenant";
const PRIORITY: HeaderName = HeaderName::from_static("x-priority");
const POLITE: [&str; 4] = ["ada", "bob", "cyd", "dee"];
const GREEDY: &str = "max";
/// Quota of each tenant per second, and its burst.
const QUOTA: u32 = 120;
/// Concurrent orders at which the shop begins to shed load, and their maximum.
const IN_FLIGHT: (f64, f64) = (20.0, 60.0);
const MS: fn(u64) -> Duration = Duration::from_millis;

/// A shop on axum under load.
#[derive(Parser)]
struct Args {
    /// Seconds of load; in the second of each three seconds the other server is slow.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Requests per second of each polite tenant; the greedy tenant sends ten times as many.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100))]
    rate: u32,
    /// Port of the shop; a free one by default.
    #[arg(long, default_value_t = 0)]
    port: u16,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match show(&args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "axum_service: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: impl AsRef<str>) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", line.as_ref())
}

fn client() -> Http {
    legacy::Client::builder(TokioExecutor::new()).build_http()
}

/// Runs a server on a free loopback port until shutdown; it then answers the requests in flight, and ends.
struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<io::Result<()>>,
}

async fn serve(app: Router, port: u16) -> Result<Server> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let ended = tokio::spawn(axum::serve(listener, app).with_graceful_shutdown(stopped).into_future());
    Ok(Server { address, stop, ended })
}

// ---- the second server ------------------------------------------------------------------------------------------------------

/// The stock server. Of a hundred requests four get a 503 and one hangs; at times all are slow.
#[derive(Default)]
struct Stock {
    asked: AtomicU64,
    is_slow: AtomicBool,
}

impl Stock {
    fn app(self: Arc<Self>, clock: Clock) -> Router {
        Router::new().route("/", get(move || self.clone().answer(clock.clone())))
    }

    async fn answer(self: Arc<Self>, clock: Clock) -> Response {
        let n = self.asked.fetch_add(1, SeqCst);
        clock.sleep(MS(if self.is_slow.load(SeqCst) { 250 } else { 10 })).await;
        match n.wrapping_mul(37) % 100 {
            0..4 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            4 => std::future::pending().await,
            _ => "12 pieces".into_response(),
        }
    }
}

// ---- the shop ---------------------------------------------------------------------------------------------------------------

/// Returns the shop, and its health.
fn shop(
    stock: SocketAddr,
    metrics: &Metrics,
    page: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> Result<(Router, Health)> {
    // Calls to the second server. The clones of one client share their connections.
    let budget = RetryBudget::new(RetryBudgetConfig::default())?;
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).name("stock").build()?;
    let retry = Retry::builder(RetryConfig::interactive()).name("stock").budget(&budget).build()?;
    let outbound = Pipeline::new()
        .named("stock")
        .then(Timeout::new(MS(7000)))
        .then(retry.clone())
        .then(metrics.calls("stock")) // each attempt
        .then(breaker.clone())
        // Longer than a busy machine stalls, which would open the breaker.
        .then(Timeout::new(MS(2500)))
        .classify(ByStatus::new().errors(|error: &legacy::Error| {
            Verdict::failure(if error.is_connect() { FailureKind::Connect } else { kind_by_source(error) })
        }));
    let stock_requests = HttpRequests::new().telling_deadlines(&Clock::tokio());
    let outbound = PipelineLayer::new(outbound).requests(stock_requests).layer(client());
    let order = move |Extension(attempt): Extension<AttemptInfo>| {
        let mut outbound = outbound.clone();
        async move {
            let mut request = Request::new(Empty::<Bytes>::new());
            *request.uri_mut() = format!("http://{stock}/").parse().unwrap_or_default();
            request.extensions_mut().insert(attempt); // ends no later than the order does
            match outbound.call(request).await {
                Ok(answer) if answer.status().is_success() => "sold".into_response(),
                // A failure of the second server is not the caller's fault, and gives no time to return.
                Ok(_) => StatusCode::BAD_GATEWAY.into_response(),
                Err(error) if status_of(&error) == StatusCode::GATEWAY_TIMEOUT => {
                    StatusCode::GATEWAY_TIMEOUT.into_response()
                }
                Err(_) => StatusCode::BAD_GATEWAY.into_response(),
            }
        }
    };

    // Incoming requests: a concurrency limit, and load shedding by its use. High priority is never shed.
    let places = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1000)).name("orders").build()?;
    let taken = {
        let places = places.clone();
        move || f64::from(places.capacity()) - places.available() as f64
    };
    let shed = ShedderConfig::default()
        .limit("in_flight", IN_FLIGHT.0, IN_FLIGHT.1)
        .sample_every(MS(5))
        .sustain(MS(100))
        .recovery(MS(400))
        .min_priority(Priority::High);
    let shedder = Shedder::builder(shed).name("orders").gauge("in_flight", taken).build()?;
    let inbound = Pipeline::new()
        .named("orders")
        .then(metrics.calls("orders"))
        .then(shedder.clone())
        .then(places.clone())
        .then(Timeout::new(MS(10_000)))
        .classify(ByStatus::new());
    let requests = ReceivedRequests::new().believing_deadlines(&Clock::tokio()).believing_priority(PRIORITY);
    let inbound = PipelineLayer::new(inbound).requests(requests).answering();

    // The tenant's quota is checked first.
    let tenants = KeyedRateLimiter::<String>::builder(Quota::per_second(QUOTA).burst(QUOTA)).name("tenants").build()?;
    let gate = Gate { tenants: tenants.clone(), meter: metrics.calls("tenants") };

    // Without the other server the shop is degraded, and no other shop would be better: it stays.
    let circuit = {
        let breaker = breaker.clone();
        move || ready(if breaker.state() == State::Open { Err("the circuit is open") } else { Ok(()) })
    };
    let config = HealthConfig::default().cache_ttl(MS(500)).drain_delay(MS(300));
    let built = Health::builder(config).name("shop").check(Check::dependency("stock", circuit));
    // A monitor sees details. (A real shop has the secret from its environment.)
    let health = built.secret(Secret::new("open-sesame")).build()?;

    metrics.watch("stock", &retry)?;
    metrics.watch("stock", &budget)?;
    metrics.watch("stock", &breaker)?;
    metrics.watch("orders", &places)?;
    metrics.watch("orders", &shedder)?;
    metrics.watch("tenants", &tenants)?;
    let metrics = metrics.clone();
    let probe = |group: Group| {
        let health = health.clone();
        get(async move |headers: HeaderMap| health.answer::<String>(&group, &headers).await)
    };
    let app = Router::new()
        .route("/order", get(order))
        .layer(inbound)
        .layer(middleware::from_fn_with_state(gate, by_tenant))
        .route("/metrics", get(async move || metrics.scrape(page)))
        .route("/livez", probe(Group::Liveness))
        .route("/readyz", probe(Group::Readiness));
    Ok((app, health))
}

#[derive(Clone)]
struct Gate {
    tenants: KeyedRateLimiter<String>,
    meter: CallMeter,
}

/// Checks the tenant's quota. (A real shop takes the tenant from the authentication.)
async fn by_tenant(extract::State(gate): extract::State<Gate>, request: Request<Body>, next: Next) -> Response {
    let Some(tenant) = request.headers().get(TENANT).and_then(|tenant| tenant.to_str().ok()) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    match gate.tenants.try_acquire(tenant) {
        Ok(()) => next.run(request).await,
        Err(rejected) => {
            gate.meter.count_rejection(&rejected);
            refusal(&rejected)
        }
    }
}

// ---- the load ---------------------------------------------------------------------------------------------------------------

/// Responses by tenant, priority and status; 429 and 503 without a time to return.
#[derive(Default)]
struct Seen {
    answers: BTreeMap<(&'static str, Priority, u16), u64>,
    without_a_time: u64,
}

impl Seen {
    fn count(&self, which: impl Fn(&str, Priority, u16) -> bool) -> u64 {
        self.answers.iter().filter(|((t, p, s), _)| which(t, *p, *s)).map(|(_, n)| n).sum()
    }

    fn of(&self, status: u16) -> u64 {
        self.count(|_, _, s| s == status)
    }
}

async fn ask(http: &Http, uri: &str, tenant: &str, priority: Priority) -> Result<(u16, bool)> {
    let request = Request::get(uri).header(TENANT, tenant).header(PRIORITY, priority.as_str());
    let answer = http.request(request.body(Empty::new())?).await?;
    let (status, told) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
    answer.into_body().collect().await?;
    Ok((status, told))
}

/// The probes of a platform: each word that it was told, with its status.
#[derive(Default)]
struct Probes(BTreeMap<(&'static str, u16, String), u64>);

impl Probes {
    /// Asks both paths, and returns their statuses.
    async fn ask(&mut self, http: &Http, address: SocketAddr) -> Result<[u16; 2]> {
        let mut statuses = [0; 2];
        for (status, path) in statuses.iter_mut().zip(["/livez", "/readyz"]) {
            let answer = http.get(format!("http://{address}{path}").parse()?).await?;
            *status = answer.status().as_u16();
            let word = String::from_utf8(answer.into_body().collect().await?.to_bytes().to_vec())?;
            *self.0.entry((path, *status, word)).or_default() += 1;
        }
        Ok(statuses)
    }
}

/// One tenant with a request rate. A greedy tenant catches up on delayed requests; the others do not, so that they
/// never exceed their rate.
#[derive(Clone, Copy)]
struct Asks {
    tenant: &'static str,
    rate: u32,
    greedy: bool,
}

impl Asks {
    /// Sends requests for this time, with or without responses; then waits for all responses.
    async fn load(self, http: Http, uri: String, until: Duration, seen: Arc<Mutex<Seen>>) -> Result<()> {
        const EACH_TEN: &[Priority] = {
            use Priority::{High, Low, Normal};
            &[High, High, Normal, Normal, Normal, Low, Low, Low, Low, Low]
        };
        let (clock, mut asked) = (Clock::tokio(), Vec::new());
        let (began, mut priorities) = (clock.now(), EACH_TEN.iter().cycle());
        while clock.now() < began + until {
            let late = ((clock.now() - began).as_secs_f64() * f64::from(self.rate)) as usize + 1;
            let late = late.saturating_sub(asked.len());
            for priority in priorities.by_ref().take(if self.greedy { late } else { 1 }) {
                let (http, uri, seen) = (http.clone(), uri.clone(), seen.clone());
                asked.push(tokio::spawn(async move {
                    let (status, told) = ask(&http, &uri, self.tenant, *priority).await?;
                    let mut seen = seen.lock().map_err(|_| "poisoned")?;
                    *seen.answers.entry((self.tenant, *priority, status)).or_default() += 1;
                    seen.without_a_time += u64::from(matches!(status, 429 | 503) && !told);
                    Ok::<_, Box<dyn Error + Send + Sync>>(())
                }));
            }
            clock.sleep(Duration::from_secs(1) / self.rate).await;
        }
        join_all(asked).await.into_iter().try_for_each(|done| done?)
    }
}

/// Returns the sum of a family's series whose line contains all these words.
fn sum(page: &str, family: &str, words: &[&str]) -> u64 {
    let of_it = |line: &&str| line.starts_with(&format!("{family}{{")) && words.iter().all(|word| line.contains(word));
    let values = page.lines().filter(of_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

async fn show(args: &Args) -> Result<bool> {
    let clock = Clock::tokio();
    let stock = Arc::new(Stock::default());
    let second = serve(stock.clone().app(clock.clone()), 0).await?;
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let metrics = Metrics::on(recorder);
    let (shop, health) = shop(second.address, &metrics, move || page.render())?;
    let first = serve(shop, args.port).await?;
    let (http, order) = (client(), format!("http://{}/order", first.address));

    say(format!(
        "{} polite tenants ask {} times a second, a greedy one {} times; each may {QUOTA} times",
        POLITE.len(),
        args.rate,
        args.rate * 10
    ))?;
    let (began, seen) = (clock.now(), Arc::new(Mutex::new(Seen::default())));
    let until = Duration::from_secs(args.seconds);
    let polite = POLITE.map(|tenant| Asks { tenant, rate: args.rate, greedy: false });
    let tenants = polite.into_iter().chain([Asks { tenant: GREEDY, rate: args.rate * 10, greedy: true }]);
    let load = |asks: Asks| asks.load(http.clone(), order.clone(), until, seen.clone());
    let loads: Vec<_> = tenants.map(load).map(tokio::spawn).collect();
    let (mut probes, mut is_up) = (Probes::default(), true);
    for second in 0..args.seconds {
        stock.is_slow.store(second % 3 == 1, SeqCst);
        for _ in 0..10 {
            clock.sleep(MS(100)).await;
            is_up &= probes.ask(&http, first.address).await? == [200, 200];
        }
    }
    stock.is_slow.store(false, SeqCst);
    for load in loads {
        load.await??;
    }
    let took = (clock.now() - began).as_secs_f64();

    let metrics_page =
        http.get(format!("http://{}/metrics", first.address).parse()?).await?.into_body().collect().await?;
    let text = String::from_utf8(metrics_page.to_bytes().to_vec())?;

    // An open breaker closes again.
    for _ in 0..300 {
        if ask(&http, &order, "eve", Priority::High).await?.0 == 200 {
            break;
        }
        clock.sleep(MS(100)).await;
    }

    // Load balancers are told first, and have time to notice. The platform is not: it would kill the shop.
    let ends = tokio::spawn(async move { health.stopping().await });
    let mut statuses = [200; 2];
    for _ in 0..600 {
        statuses = probes.ask(&http, first.address).await?;
        if statuses != [200, 200] {
            break;
        }
        clock.sleep(MS(10)).await;
    }
    let drains = statuses == [200, 503];
    ends.await?;
    for ((path, status, word), times) in &probes.0 {
        say(format!("  {path}: {status} {word}, {times} times"))?;
    }

    // An order in flight at shutdown is answered; after that the shop accepts no connection.
    stock.is_slow.store(true, SeqCst);
    let last = tokio::spawn({
        let (http, order) = (client(), order.clone());
        async move { ask(&http, &order, "eve", Priority::High).await }
    });
    let before = stock.asked.load(SeqCst);
    while stock.asked.load(SeqCst) == before && !last.is_finished() {
        clock.sleep(MS(1)).await;
    }
    drop(http); // its idle connections, which the shop would wait for
    let _ = first.stop.send(());
    let last = last.await??;
    first.ended.await??;
    let gone = ask(&client(), &order, "eve", Priority::High).await.is_err();
    second.ended.abort();

    let seen = std::mem::take(&mut *seen.lock().map_err(|_| "poisoned")?);
    report(&seen, &text, took, [is_up, drains, last.0 == 200 && gone])
}

/// Prints the results, and returns `true` if all promises hold.
fn report(seen: &Seen, page: &str, took: f64, [is_up, drains, stopped_well]: [bool; 3]) -> Result<bool> {
    let all = seen.count(|_, _, _| true);
    let (ok, limited, shed) = (seen.of(200), seen.of(429), seen.of(503));
    let failed = all - ok - limited - shed;
    let served = |tenant: &str| seen.count(|t, _, s| t == tenant && s != 429);
    for tenant in POLITE.into_iter().chain([GREEDY]) {
        let of = |status| seen.count(|t, _, s| t == tenant && s == status);
        say(format!("  {tenant:<4} {:>5} sold, {:>5} limited, {:>5} shed", of(200), of(429), of(503)))?;
    }
    let high = |status: u16| seen.count(|_, p, s| p == Priority::High && s == status);
    let high_asked = seen.count(|_, p, s| p == Priority::High && s != 429);
    for priority in [Priority::High, Priority::Normal, Priority::Low] {
        let of = |status| seen.count(|_, p, s| p == priority && s == status);
        say(format!("  {priority:<6} {:>5} sold, {:>5} shed", of(200), of(503)))?;
    }

    // The figures of the metrics page beside those of the clients.
    let calls = |outcome: &str| sum(page, "steadfast_calls_total", &["name=\"orders\"", outcome]);
    let told = [
        ("sold", ok, calls("outcome=\"success\"")),
        ("limited", limited, sum(page, "steadfast_call_rejections_total", &["name=\"tenants\"", "rate_limited"])),
        ("shed", shed, sum(page, "steadfast_call_rejections_total", &["name=\"orders\"", "\"shed\""])),
        (
            "shed, by the shedder",
            shed,
            sum(page, "steadfast_throttling_rejected_total", &["name=\"orders\"", "\"shed\""]),
        ),
        ("failed", failed, calls("outcome=\"failure\"")),
        ("in flight", 0, sum(page, "steadfast_calls_in_flight", &["name=\"orders\""])),
        ("the breaker's states", 1, sum(page, "steadfast_circuit_breaker_state", &["name=\"stock\""])),
    ];
    for (what, seen, told) in told.iter().filter(|(_, seen, told)| seen != told) {
        say(format!("  {what}: {seen} received, {told} on /metrics"))?;
    }
    let retries = sum(page, "steadfast_retry_retries_total", &["name=\"stock\""]);
    let polite_limited = seen.count(|t, _, s| t != GREEDY && s == 429);
    // A full burst, and then the quota's rate; the last requests are answered afterwards.
    let bound = f64::from(QUOTA) * (took + 1.0);
    let promises = [
        ("high priority is never shed", high(503) == 0),
        ("high priority is served", high(200) * 100 >= high_asked * 99),
        ("low priority is shed when the other server is slow", shed > 0),
        ("no polite tenant is limited", polite_limited == 0),
        ("the greedy tenant has its quota and no more", limited > 0 && served(GREEDY) as f64 <= bound),
        ("each rejection has a time to return", seen.without_a_time == 0),
        ("faults of the other server are retried", retries > 0),
        ("the numbers on /metrics are those that were seen", told.iter().all(|(_, seen, told)| seen == told)),
        ("probes are answered under load, also while the other server is slow", is_up),
        ("readiness ends before the shop does, and liveness stays", drains),
        ("a shutdown finishes requests in flight", stopped_well),
    ];
    for (promise, held) in promises {
        say(format!("{} {promise}", if held { "  ok  " } else { "  NOT " }))?;
    }
    let summary = json!({
        "requests": all, "sold": ok, "limited": limited, "shed": shed, "failed": failed, "retries": retries,
        "high_sold": high(200), "high_shed": high(503), "polite_limited": polite_limited,
        "without_a_time": seen.without_a_time, "greedy_served": served(GREEDY), "greedy_bound": bound as u64,
        "promises_kept": promises.iter().filter(|(_, held)| *held).count(), "promises": promises.len(),
    });
    say(format!("\nsummary: {summary}"))?;
    Ok(promises.iter().all(|(_, held)| *held))
}
