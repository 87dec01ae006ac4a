//! An inventory service that fails for a while, over HTTP, behind a circuit breaker.
//!
//! Orders come all the time; each asks the service, and is answered from a fallback where the breaker rejects. Shown are the opening, a
//! service that is left in peace while it is ill, recovery found out by its health endpoint and not by orders, the slow start after closing, and
//! two hosts that have a breaker each. The last line is the result as JSON; the exit code says whether all was as it should be.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{
    convert::Infallible,
    error::Error,
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::join_all;
use http_body_util::Empty;
use hyper::{Request, Response, StatusCode, body::Bytes, body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use serde_json::json;
use steadfast::{
    Cause, Pipeline, Reason,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, OpenConfig, SlowStartConfig, State,
        Transition,
    },
    observe::Event,
    time::{Clock, Instant},
    timeout::Timeout,
};
use tokio::{net::TcpListener, sync::oneshot};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
type Http = Client<HttpConnector, Empty<Bytes>>;

const MS: fn(u64) -> Duration = Duration::from_millis;

#[tokio::main]
async fn main() -> ExitCode {
    clap::Command::new("circuit_breaker")
        .about("An inventory service that fails for a while, over HTTP, behind a circuit breaker.")
        .get_matches();
    match show().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "circuit_breaker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn config() -> CircuitBreakerConfig {
    CircuitBreakerConfig::default()
        .count_window(20, 10)
        .open(OpenConfig::default().initial_delay(MS(200)).max_delay(MS(800)))
        .half_open_calls(3, 1.0)
        .slow_start(SlowStartConfig::linear(MS(1500), 0.2))
}

// ---- the inventory ----------------------------------------------------------------------------------------------------------

#[derive(Default)]
struct Inventory {
    is_down: AtomicBool,
    asked: AtomicU64,
    asked_while_down: AtomicU64,
    health_checks: AtomicU64,
}

impl Inventory {
    async fn open() -> Result<(Arc<Self>, SocketAddr)> {
        let inventory = Arc::new(Self::default());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, serving) = (listener.local_addr()?, inventory.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inventory = serving.clone();
                let service = service_fn(move |request| {
                    let response = inventory.answer(&request);
                    async { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Ok((inventory, address))
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Empty<Bytes>> {
        let down = self.is_down.load(SeqCst);
        if request.uri().path() == "/health" {
            self.health_checks.fetch_add(1, SeqCst);
        } else {
            self.asked.fetch_add(1, SeqCst);
            self.asked_while_down.fetch_add(u64::from(down), SeqCst);
        }
        let mut response = Response::new(Empty::new());
        if down {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    }
}

async fn ask(http: &Http, host: SocketAddr, path: &str) -> Result<()> {
    let request = Request::builder().uri(format!("http://{host}{path}")).body(Empty::new())?;
    let status = http.request(request).await?.status();
    if status.is_success() { Ok(()) } else { Err(format!("HTTP {status}").into()) }
}

// ---- orders -----------------------------------------------------------------------------------------------------------------

/// Results of the orders of one period.
#[derive(Default, Clone, Copy)]
struct Orders {
    served: u64,
    failed: u64,
    rejected: u64,
    slow_start: u64,
}

/// Sends ten orders every ten milliseconds for this period.
async fn orders(
    clock: &Clock,
    breaker: &CircuitBreaker,
    until: impl Fn(&CircuitBreaker, &Orders, Instant) -> bool,
    http: &Http,
    host: SocketAddr,
) -> Orders {
    let pipeline = Pipeline::new().then(breaker.clone()).then(Timeout::new(MS(10_000)));
    let mut orders = Orders::default();
    while !until(breaker, &orders, clock.now()) {
        let calls = join_all((0..10).map(|_| pipeline.call(|| ask(http, host, "/stock")))).await;
        for call in calls {
            match call {
                Ok(()) => orders.served += 1,
                // A shop would accept the order against yesterday's stock.
                Err(error) => match error.cause() {
                    Cause::Rejected(why) if why.reason() == Reason::SlowStart => orders.slow_start += 1,
                    Cause::Rejected(_) => orders.rejected += 1,
                    _ => orders.failed += 1,
                },
            }
        }
        clock.sleep(MS(10)).await;
    }
    orders
}

fn timeline(start: Instant, transitions: &[Event<Transition>]) -> Result<()> {
    for event in transitions {
        let Transition { from, to, rule, open_for, .. } = event.what;
        let why = match (rule, open_for) {
            (Some(rule), Some(open_for)) => format!("by {rule}, for {} ms", open_for.as_millis()),
            _ => String::new(),
        };
        let at = (event.at - start).as_millis();
        writeln!(io::stdout().lock(), "  {at:>6} ms   {:>9} -> {:<9}  {why}", from.as_str(), to.as_str())?;
    }
    Ok(())
}

async fn show() -> Result<bool> {
    let (clock, http): (_, Http) = (Clock::tokio(), Client::builder(TokioExecutor::new()).build(HttpConnector::new()));
    let (inventory, host) = Inventory::open().await?;
    let breaker = CircuitBreaker::builder(config()).name("inventory").build()?;
    let (mut followed, start) = (breaker.transitions(), clock.now());
    let after = |d: Duration| {
        let end = clock.now() + d;
        move |_: &CircuitBreaker, _: &Orders, now: Instant| now >= end
    };

    // The loop that probes the service's health; orders do not probe.
    let (stop, stopped) = oneshot::channel::<()>();
    let prober = tokio::spawn({
        let (breaker, http) = (breaker.clone(), http.clone());
        async move { breaker.run(|| ask(&http, host, "/health"), async { drop(stopped.await) }).await }
    });

    let well = orders(&clock, &breaker, after(MS(300)), &http, host).await;
    inventory.is_down.store(true, SeqCst);
    let while_ill = after(MS(1000));
    // Until it has opened again, also on a machine that stalls.
    let reopens = |breaker: &CircuitBreaker, orders: &Orders, now| {
        while_ill(breaker, orders, now) && breaker.snapshot().total_openings >= 2
    };
    let ill = orders(&clock, &breaker, reopens, &http, host).await;
    inventory.is_down.store(false, SeqCst);
    let back = orders(&clock, &breaker, |breaker, _, _| breaker.state() == State::Closed, &http, host).await;
    let slow_start = orders(&clock, &breaker, |breaker, _, _| breaker.snapshot().share == 1.0, &http, host).await;
    let full = orders(&clock, &breaker, after(MS(200)), &http, host).await;

    let mut transitions = Vec::new();
    while let Some(event) = followed.try_recv()? {
        transitions.push(event);
    }
    let mut out = String::from("\none service, behind a breaker\n\n");
    for (what, o) in
        [("well", well), ("ill", ill), ("well again", back), ("slow start", slow_start), ("as before", full)]
    {
        let Orders { served, failed, rejected, slow_start } = o;
        out += &format!(
            "  {what:<11} {served:>5} served {failed:>4} failed {rejected:>5} rejected {slow_start:>4} by the slow start\n"
        );
    }
    writeln!(io::stdout().lock(), "{out}")?;
    timeline(start, &transitions)?;
    let snapshot = breaker.snapshot();
    let open_for = snapshot.time_in(State::Open) + snapshot.time_in(State::HalfOpen);
    let while_down = inventory.asked_while_down.load(SeqCst);
    writeln!(
        io::stdout().lock(),
        "\n  while it failed it got {while_down} calls of orders, and {} health probes\n",
        inventory.health_checks.load(SeqCst)
    )?;
    let _ = stop.send(());
    prober.await?;

    // Two hosts with a breaker each: the failing host does not affect the other.
    let (other, other_host) = Inventory::open().await?;
    inventory.is_down.store(true, SeqCst);
    let hosts = KeyedBreakers::builder(KeyedBreakersConfig::from(config()).max_open(0.5))
        .name_by(|host: &SocketAddr| format!("inventory/{host}").into())
        .build()?;
    let one = orders(&clock, &hosts.get(&host), |_, orders, _| orders.rejected > 0, &http, host).await;
    let two = orders(&clock, &hosts.get(&other_host), after(MS(150)), &http, other_host).await;
    other.is_down.store(true, SeqCst);
    let suppressed = orders(&clock, &hosts.get(&other_host), after(MS(150)), &http, other_host).await;
    let [closed, open, ..] = hosts.states();
    writeln!(
        io::stdout().lock(),
        "  of two hosts one is ill: {} orders rejected there, {} on the other; both are ill: {} rejected, for one half may be open\n",
        one.rejected,
        two.rejected,
        suppressed.rejected
    )?;

    let summary = json!({
        "served": well.served + ill.served + back.served + slow_start.served + full.served,
        "failed": ill.failed, "rejected": ill.rejected + back.rejected, "rejected_by_slow_start": slow_start.slow_start,
        "asked_while_down": while_down, "openings": snapshot.total_openings, "open_ms": open_for.as_millis() as u64,
        "transitions": transitions.len(), "hosts_open": open, "hosts_closed": closed, "suppressed": hosts.get(&other_host).snapshot().total_suppressed,
    });
    writeln!(io::stdout().lock(), "summary: {summary}")?;
    let ways: Vec<_> = transitions.iter().map(|event| (event.what.from, event.what.to)).collect();
    let followed_whole = ways.windows(2).all(|pair| pair[0].1 == pair[1].0);
    Ok(well.failed + well.rejected == 0
        && (10..=20).contains(&while_down) // what fills the window to where it is judged, and those that were on their way
        && ill.failed == while_down
        && back.failed + slow_start.failed + full.failed == 0
        && slow_start.slow_start > 0
        && full.slow_start + full.rejected == 0
        && snapshot.total_openings >= 2
        && followed_whole
        && ways.first() == Some(&(State::Closed, State::Open))
        && ways.last() == Some(&(State::HalfOpen, State::Closed))
        && one.rejected > 0
        && two.rejected + two.failed + suppressed.rejected == 0
        && (open, closed) == (1, 1))
}
