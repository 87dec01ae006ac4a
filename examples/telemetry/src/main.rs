//! One trace of one order, through a call, a queue, a saga and a stream, and metrics, by OpenTelemetry to a collector.
//!
//! A customer orders over HTTP, by a pipeline that retries. The shop puts the order into a queue. A listener takes it from there,
//! and submits a saga, whose step calls a bank and appends an event to a stream. A processor records the event. Each of these
//! parts runs in tasks of its own, as it would in a process of its own: the context of the trace is in the headers of
//! requests, messages, submissions and events. All is sent to a receiver of the example's own, which decodes it; with
//! `--collector` to a collector, which may forward it to that receiver. The last line is the result as JSON; the exit code is 0
//! if there is one trace.
#![allow(missing_docs, reason = "a program has no readers from outside")]
mod collector;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    error::Error,
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, extract::State, http::HeaderMap, http::StatusCode, routing::post};
use clap::Parser;
use collector::{Arrived, Collector};
use metrics_exporter_opentelemetry::Recorder;
use opentelemetry::{
    metrics::MeterProvider as _,
    propagation::TextMapPropagator as _,
    trace::{TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_otlp::{MetricExporter, Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource, metrics::SdkMeterProvider, propagation::TraceContextPropagator, trace::SdkTracerProvider,
};
use serde_json::{Value, json};
use steadfast::{
    FailureKind, Pipeline, Verdict,
    backend::{self, Backend},
    call::idempotent,
    codec::Codec,
    metrics::Metrics,
    queue::{Message, QueueExt as _},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    saga::{Plan, Saga, SagaConfig, Step, StepOutcome},
    scheduler::{Scheduler, SchedulerConfig, Submission},
    stream::{Delivered, Event, Producer, ProducerConfig, StoreTopic, StreamProcessor, StreamProcessorConfig},
    time::Clock,
    work::EventDisposition,
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tracing::{Instrument as _, Span, info_span, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{Layer as _, filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// One order, and its trace.
#[derive(Parser)]
struct Args {
    /// Sends to this collector of OTLP over HTTP, such as `http://127.0.0.1:4318`, and tells the id of the trace.
    #[arg(long, value_name = "URL")]
    collector: Option<String>,
    /// Judges what the collector forwards to this address, by OTLP over HTTP.
    #[arg(long, value_name = "ADDRESS", requires = "collector")]
    forwarded_to: Option<SocketAddr>,
    /// Leaves out the headers of messages, so that the trace falls apart.
    #[arg(long)]
    plant_no_headers: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match show(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "telemetry: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: impl AsRef<str>) {
    // A closed pipe is not an error.
    let _ = writeln!(io::stdout().lock(), "{}", line.as_ref());
}

// ---- the context of a trace, in headers -------------------------------------------------------------------------------------

/// Returns the context of the current span as headers.
fn carried() -> HashMap<String, String> {
    let mut headers = HashMap::new();
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut headers);
    headers
}

/// Makes a span that has not begun a part of the one whose context these headers carry.
fn continued(span: Span, headers: &BTreeMap<String, String>) -> Span {
    let headers: HashMap<_, _> = headers.clone().into_iter().collect();
    let _ = span.set_parent(TraceContextPropagator::new().extract(&headers));
    span
}

// ---- the parts of the shop --------------------------------------------------------------------------------------------------

/// The signal that ends the parts.
#[derive(Clone)]
struct Stop(watch::Receiver<bool>);

impl Stop {
    async fn asked(mut self) {
        let _ = self.0.wait_for(|asked| *asked).await;
    }
}

#[derive(Clone)]
struct Shop {
    backend: Backend,
    metrics: Metrics,
    was_asked: Arc<AtomicBool>,
    has_headers: bool,
}

/// Takes an order over HTTP. The first request is refused, as if the shop had just started.
async fn accept(State(shop): State<Shop>, headers: HeaderMap, body: String) -> StatusCode {
    let headers = headers.iter().filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
    let span = continued(info_span!("accept"), &headers.collect());
    let work = async {
        if !shop.was_asked.swap(true, SeqCst) {
            return Ok(StatusCode::SERVICE_UNAVAILABLE);
        }
        let mut message = Message::new(body);
        if shop.has_headers {
            message.headers.extend(carried());
        }
        shop.backend.queue("orders").await?.send_one(message).await?;
        Ok::<_, Box<dyn Error + Send + Sync>>(StatusCode::ACCEPTED)
    };
    work.instrument(span).await.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Takes orders from the queue, and submits a saga for each.
async fn take_orders(shop: Shop, sagas: Scheduler<String>, stop: Stop) -> Result<()> {
    let listener = QueueListener::new(shop.backend.queue("orders").await?, QueueListenerConfig::default())?;
    shop.metrics.watch("orders", &listener)?;
    let handle = async |work: Work| {
        let span = continued(info_span!("take"), &work.headers);
        let submit = async {
            let order = String::from_utf8_lossy(&work.body).into_owned();
            let mut submission = Submission::new(format!("order-{}", work.id), order);
            submission.headers.extend(carried());
            match sagas.submit(submission).await {
                Ok(()) => Disposition::Complete,
                Err(error) => Disposition::retry(error),
            }
        };
        submit.instrument(span).await
    };
    Ok(listener.run(stop.asked(), handle).await?)
}

/// Returns the sagas of orders: their only step charges a bank, and appends an event.
async fn sagas(shop: &Shop, producer: Producer) -> Result<Scheduler<String>> {
    let bank = Pipeline::new()
        .then(shop.metrics.calls("bank"))
        .classify(|_: &std::result::Result<(), String>| Verdict::success());
    let charge = move |step: Step<String>| {
        let span = continued(info_span!("charge"), step.headers());
        let (bank, producer) = (bank.clone(), producer.clone());
        let work = async move {
            let charged = bank.call(async || Ok::<_, String>(())).await;
            let mut event = Event::new("charged").key(step.id()).id(step.key());
            event.headers.extend(carried());
            match producer.append(event).await {
                Ok(_) => step.of_call(charged, |order, ()| order.push_str(", charged")),
                Err(error) => StepOutcome::unknown(error),
            }
        };
        work.instrument(span)
    };
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let plan = Plan::new().pivot("charge", charge);
    let saga = Saga::new("order", shop.backend.store(), codec, plan, SagaConfig::default())?;
    shop.metrics.watch("order", &saga)?;
    Ok(Scheduler::new(saga, shop.backend.queue("sagas").await?, SchedulerConfig::default())?)
}

/// Records events of the stream, and tells of each.
async fn record_events(shop: Shop, topic: StoreTopic, tell: mpsc::Sender<()>, stop: Stop) -> Result<()> {
    let (leases, store) = (shop.backend.lease(), shop.backend.store());
    let processor =
        StreamProcessor::builder(topic, "records", leases, store, StreamProcessorConfig::default()).build()?;
    let handle = async |event: Delivered| {
        let span = continued(info_span!("record"), &event.event.headers);
        let _ = tell.send(()).instrument(span).await;
        EventDisposition::Complete
    };
    Ok(processor.run(stop.asked(), handle).await?)
}

/// Orders over HTTP, by a pipeline that retries.
async fn order(shop: &Shop, url: &str) -> Result<()> {
    let budget = RetryBudget::new(RetryBudgetConfig::default())?;
    let retry = Retry::builder(RetryConfig::interactive()).budget(&budget).build()?;
    let verdict = |answer: &std::result::Result<(), String>| match answer {
        Ok(()) => Verdict::success(),
        Err(_) => Verdict::failure(FailureKind::Connect),
    };
    let calls = Pipeline::new().then(shop.metrics.calls("shop")).then(retry).classify(verdict);
    let client = reqwest::Client::new();
    let send = async || {
        let request = carried().iter().fold(client.post(url), |request, (name, value)| request.header(name, value));
        let answer = request.body("two books").send().await.map_err(|error| error.to_string())?;
        answer.error_for_status().map(drop).map_err(|error| error.to_string())
    };
    calls.call(idempotent(send)).await.map_err(|error| error.to_string().into())
}

// ---- the order, and the trace ---------------------------------------------------------------------------------------------

async fn show(args: Args) -> Result<()> {
    let clock = Clock::tokio();
    let (own, address) = Collector::start(args.forwarded_to).await?;
    let address = args.collector.as_deref().unwrap_or(&address);

    // Spans and metrics to the collector.
    let resource = Resource::builder().with_service_name("shop").build();
    let spans = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
    let spans = spans.with_endpoint(format!("{address}/v1/traces")).build()?;
    let tracers = SdkTracerProvider::builder().with_batch_exporter(spans).with_resource(resource.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(tracers.tracer("shop"));
    // Calls and attempts are spans at `DEBUG`.
    let wanted = Targets::new()
        .with_target("steadfast", LevelFilter::DEBUG)
        .with_target("steadfast_telemetry", LevelFilter::INFO);
    tracing_subscriber::registry().with(layer.with_filter(wanted)).init();
    let numbers = MetricExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
    let numbers = numbers.with_endpoint(format!("{address}/v1/metrics")).build()?;
    let meters = SdkMeterProvider::builder().with_periodic_exporter(numbers).with_resource(resource).build();
    let metrics = Metrics::on(Recorder::with_meter(meters.meter("shop")));

    // The shop.
    let (backend, was_asked) = (backend::open("memory:").await?, Arc::new(AtomicBool::new(false)));
    let shop = Shop { backend, metrics, was_asked, has_headers: !args.plant_no_headers };
    let topic = StoreTopic::open(shop.backend.store(), "records", 1).await?;
    let scheduler = sagas(&shop, Producer::new(topic.clone(), ProducerConfig::default())?).await?;
    let (tell, mut told) = mpsc::channel(1);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/orders", listener.local_addr()?);
    tokio::spawn(
        axum::serve(listener, Router::new().route("/orders", post(accept)).with_state(shop.clone())).into_future(),
    );
    let (asks, stop) = watch::channel(false);
    let stop = Stop(stop);
    let mut parts = JoinSet::new();
    parts.spawn(take_orders(shop.clone(), scheduler.clone(), stop.clone()));
    parts.spawn(record_events(shop.clone(), topic, tell, stop.clone()));
    parts.spawn(async move { Ok(scheduler.run(stop.asked()).await?) });

    let first = info_span!("order");
    order(&shop, &url).instrument(first.clone()).await?;
    let trace = first.context().span().span_context().trace_id();
    drop(first);
    tokio::select! {
        _ = told.recv() => {}
        () = clock.sleep(Duration::from_secs(60)) => return Err("no event was recorded within 60 s".into()),
    }
    // All spans end.
    asks.send_replace(true);
    while let Some(ended) = parts.join_next().await {
        ended??;
    }
    shop.metrics.record();
    tokio::task::spawn_blocking(move || tracers.shutdown().and_then(|()| meters.shutdown())).await??;

    if args.collector.is_some() {
        say(format!("trace {trace} was sent to {address}"));
        if args.forwarded_to.is_none() {
            return Ok(());
        }
    }
    let mut spans = own.spans();
    let (mut summary, mut verdict) = judge(&spans, &own.metrics());
    // A collector gathers what it receives for a while before it forwards it.
    let end = clock.now() + Duration::from_secs(10);
    while args.forwarded_to.is_some() && verdict.is_err() && clock.now() < end {
        clock.sleep(Duration::from_millis(100)).await;
        spans = own.spans();
        (summary, verdict) = judge(&spans, &own.metrics());
    }
    for span in &spans {
        let path = path(&spans, span);
        say(format!("{}{}", "  ".repeat(path.len() - 1), span.name));
    }
    say(format!("\nsummary: {summary}"));
    Ok(verdict?)
}

/// Returns what was received as JSON, and the fault, unless it is one trace on the expected way.
fn judge(spans: &[Arrived], metrics: &BTreeMap<String, i64>) -> (Value, std::result::Result<(), &'static str>) {
    let traces: BTreeSet<_> = spans.iter().map(|span| &span.trace).collect();
    let way = spans.iter().find(|span| span.name == "record").map(|span| path(spans, span)).unwrap_or_default();
    let calls = metrics.get("steadfast_calls_total").copied().unwrap_or_default();
    let summary =
        json!({ "traces": traces.len(), "spans": spans.len(), "way": way, "metrics": metrics.len(), "calls": calls });
    let wanted = ["order", "call", "attempt", "accept", "take", "charge", "record"].map(Value::from);
    let verdict = match traces.len() {
        0 => Err("no span was received"),
        2.. => Err("the order has several traces: a part did not continue the one of its request"),
        _ if way != wanted => Err("a span has another parent than the work that caused it"),
        _ if calls != 2 || metrics.len() <= 10 => Err("metrics are missing, or have not two calls"),
        _ => Ok(()),
    };
    (summary, verdict)
}

/// Returns the names of the spans of which a span is a part, from the first one of the trace to itself.
fn path(spans: &[Arrived], span: &Arrived) -> Vec<Value> {
    let mut path = vec![Value::from(span.name.as_str())];
    let mut at = span;
    while let Some(parent) = spans.iter().find(|other| other.trace == at.trace && other.id == at.parent) {
        path.insert(0, Value::from(parent.name.as_str()));
        at = parent;
    }
    path
}
