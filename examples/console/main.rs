//! A shop under faults, with its console: pages that are watched over HTTP, operators who repair it, and one who forges.
//!
//! The shop takes orders as sagas, which charge a bank behind a circuit breaker and send a mail, and queues deliveries. Mails
//! fail: orders are stuck. The bank goes away: the breaker opens. Some deliveries have no address: they become dead letters. The
//! script looks at the console as operators do, by requests of HTTP, and repairs the shop; with `--browser chromium` it does so in
//! a browser. With `--hold` there is no script: open the page in a browser. The last line is the result as JSON; the exit code is 0
//! if all assertions hold.
#![allow(missing_docs, reason = "a program has no readers from outside")]
mod browser;
#[path = "../common/browser.rs"]
mod devtools;
#[path = "../common/engine.rs"]
mod engine;
mod script;

use std::{
    error::Error,
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::Router;
use clap::Parser;
use engine::EngineAt;
use http::request::Parts;
use serde::{Deserialize, Serialize};
use steadfast::{
    Pipeline,
    cache_aside::{CacheAside, CacheAsideConfig},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    codec::Codec,
    console::{Access, Calls, Console, ConsoleConfig},
    leader_election::{LeaderElection, LeaderElectionConfig},
    port::Capabilities,
    queue::{
        Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, QueueExt, QueueFuture, Receipt,
        Receive, Settle,
    },
    queue_listener::{QueueControl, QueueListener, QueueListenerConfig, Work},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    saga::{Plan, Saga, SagaConfig, Step, StepOutcome},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter},
    time::Clock,
    timeout::Timeout,
    work::Disposition,
};
use tokio::net::TcpListener;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A shop with a console.
#[derive(Parser)]
struct Args {
    /// Where the shop keeps its state: `memory`, `sqlite:FILE`, `postgres`, `redis`, `nats`, or the URL of a server.
    #[arg(long, default_value = "memory")]
    backend: EngineAt,
    /// Number of pages that are open while the cost of the console is measured.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=64))]
    viewers: u64,
    /// Keeps the broken shop running, for a browser, and plays no script.
    #[arg(long)]
    hold: bool,
    /// Opens the console in this browser instead, such as `chromium`: it watches, repairs, and is attacked by names.
    #[arg(long, value_name = "PROGRAM")]
    browser: Option<PathBuf>,
    /// Folder for pictures of the pages that the browser shows.
    #[arg(long, value_name = "FOLDER", requires = "browser")]
    shots: Option<PathBuf>,
    /// Folder for the pictures of the broken shop that the docs have; it plays nothing else.
    #[arg(long, value_name = "FOLDER", requires = "browser", conflicts_with = "shots")]
    pictures: Option<PathBuf>,
    /// Port of the shop; a free one by default.
    #[arg(long, default_value_t = 0)]
    port: u16,
}

#[tokio::main]
async fn main() -> ExitCode {
    match show(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "console: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: impl AsRef<str>) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", line.as_ref())
}

async fn show(args: Args) -> Result<()> {
    let engine = args.backend.start().map_err(|error| format!("--backend: {error}"))?;
    let is_attacked = args.browser.is_some() && args.pictures.is_none();
    let slots = if is_attacked { browser::HOSTILE } else { "slots" };
    let shop = Shop::open(&engine, slots).await?;
    let address = serve(&shop, args.port).await?;
    shop.work();
    if args.hold {
        shop.fail().await?;
        say(format!("http://{address}/console: `x-user` is an operator; without the header everyone is"))?;
        std::future::pending::<()>().await;
    }
    if let (Some(program), Some(folder)) = (&args.browser, &args.pictures) {
        return browser::picture(&shop, address, program, folder).await;
    }
    if let Some(program) = &args.browser {
        return browser::play(&shop, address, program, args.shots.as_deref()).await;
    }
    script::play(&shop, address, args.viewers as usize).await
}

/// A queue that counts the requests of the console.
#[derive(Debug, Clone)]
struct Counted {
    queue: Arc<dyn Queue>,
    requests: Arc<AtomicU64>,
}

impl Counted {
    fn count(&self) -> &dyn Queue {
        self.requests.fetch_add(1, SeqCst);
        &*self.queue
    }
}

impl Queue for Counted {
    fn capabilities(&self) -> Capabilities {
        self.queue.capabilities()
    }
    fn identity(&self) -> String {
        self.queue.identity()
    }
    fn address(&self) -> Option<Address> {
        self.queue.address()
    }
    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        self.count().send(messages)
    }
    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        self.count().receive(receive)
    }
    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> QueueFuture<'a, Vec<std::result::Result<(), QueueError>>> {
        self.count().settle(settlements)
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        self.count().extend(receipt, visibility)
    }
    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        self.count().mark_begun(receipt, visibility, begun)
    }
    fn depth(&self) -> QueueFuture<'_, Depth> {
        self.count().depth()
    }
    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        self.count().peek(max)
    }
    fn purge(&self) -> QueueFuture<'_, u64> {
        self.count().purge()
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let queue = self.queue.dead_letters()?;
        Some(Arc::new(Self { queue, requests: self.requests.clone() }))
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    account: u32,
    charged: bool,
}

/// The shop: what it runs, and what the script breaks.
#[derive(Clone)]
struct Shop {
    bank_is_away: Arc<AtomicBool>,
    mail_is_away: Arc<AtomicBool>,
    /// Requests of the console to the queue.
    asked: Arc<AtomicU64>,
    breaker: CircuitBreaker,
    bank: BankCalls,
    slots: ConcurrencyLimiter,
    prices: CacheAside<u32, u32>,
    deliveries: Arc<dyn Queue>,
    listener: QueueListener,
    orders: Saga<Order>,
    nightly: LeaderElection,
    console: Console,
}

type BankCalls = steadfast::BoxedPipeline<(), io::Error>;

/// Rights of a request: of the header that a proxy would set. This machine is reached by its user alone.
fn rights(request: &Parts) -> Access {
    match request.headers.get("x-user").map(|user| user.to_str().unwrap_or_default()) {
        Some("guest") => Access::Read("guest".to_owned()),
        user => Access::Operate(user.unwrap_or("operator").to_owned()),
    }
}

impl Shop {
    /// Opens a shop with this name for its slots.
    async fn open(engine: &engine::Engine, name_of_slots: &str) -> Result<Self> {
        let backend = engine.open().await?;
        let (bank_is_away, mail_is_away) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let asked = Arc::new(AtomicU64::new(0));
        let config = CircuitBreakerConfig::default().count_window(20, 5).open_for(MS(600_000), MS(600_000));
        let breaker = CircuitBreaker::builder(config).name("bank").build()?;
        let budget = RetryBudget::new(RetryBudgetConfig::default())?;
        let calls = Pipeline::new()
            .then(Calls::new(&Clock::tokio()))
            .then(Timeout::new(MS(2_000)))
            .then(Retry::builder(RetryConfig::interactive()).budget(&budget).build()?)
            .then(breaker.clone())
            .then(Timeout::new(MS(500)));
        let bank: BankCalls = calls.clone().boxed();

        let charge = {
            let (bank, away) = (bank.clone(), bank_is_away.clone());
            move |step: Step<Order>| {
                let (bank, away) = (bank.clone(), away.clone());
                async move {
                    let charged = bank.call(async || charge(&away).await).await;
                    step.of_call(charged, |order: &mut Order, ()| order.charged = true)
                }
            }
        };
        let mail = {
            let away = mail_is_away.clone();
            move |_: Step<Order>| {
                let away = away.load(SeqCst);
                async move { if away { StepOutcome::failed("the mailbox is full") } else { StepOutcome::completed() } }
            }
        };
        let plan = Plan::<Order>::new()
            .step_fn("reserve", |_| async { StepOutcome::completed() }, |_| async { StepOutcome::completed() })
            .pivot("charge", charge)
            .step("mail", mail);
        let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
        let orders = Saga::new(engine.name("order"), backend.store(), codec, plan, SagaConfig::default())?;

        let deliveries = backend.queue(&engine.name("deliveries")).await?;
        let control = QueueControl::new(backend.store())?;
        let listener = QueueListener::builder(deliveries.clone(), QueueListenerConfig::default());
        let listener = listener.control(&control).build()?;
        let config = LeaderElectionConfig::of_term(MS(10_000));
        let nightly = LeaderElection::new(backend.lease(), engine.name("nightly"), config)?;
        let slots = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(16))?;
        let prices = CacheAside::new(CacheAsideConfig::default())?;
        let console = Console::builder(ConsoleConfig::default())
            .name("shop")
            .watch("bank", &breaker)
            .watch("bank pipeline", &calls)
            .watch(name_of_slots, &slots)
            .control(&control)
            .queue("deliveries", Counted { queue: deliveries.clone(), requests: asked.clone() })
            .watch("dispatch", &listener)
            .watch("orders", &orders)
            .watch("nightly", &nightly)
            .watch("prices", &prices)
            .authorize(rights)
            .build()?;
        Ok(Self {
            bank_is_away,
            mail_is_away,
            asked,
            breaker,
            bank,
            slots,
            prices,
            deliveries,
            listener,
            orders,
            nightly,
            console,
        })
    }

    /// Runs what the shop does until the process ends.
    fn work(&self) {
        let shop = self.clone();
        tokio::spawn(async move {
            let dispatch = async |work: Work| match &work.body[..] {
                body if body.starts_with(b"no address") => {
                    Disposition::<Vec<_>>::DeadLetter { reason: "the customer <b>has no address</b>".to_owned() }
                }
                _ => Disposition::Complete,
            };
            shop.listener.run(std::future::pending(), dispatch).await
        });
        let shop = self.clone();
        tokio::spawn(async move {
            let lead = |term: steadfast::leader_election::Term| async move { term.lost().await };
            shop.nightly.run(std::future::pending(), lead).await
        });
        for customer in 0..12 {
            let shop = self.clone();
            tokio::spawn(async move {
                loop {
                    let _ = shop.buy(customer).await;
                    Clock::tokio().sleep(MS(50 + u64::from(customer) * 7)).await;
                }
            });
        }
    }

    /// Reads a price and asks the bank for a balance.
    async fn buy(&self, customer: u32) -> Result<()> {
        let _slot = self.slots.acquire().await?;
        let price = move || async move { Ok::<_, io::Error>(customer * 7) };
        self.prices.get_or_load(&(customer % 5), price).await?;
        Ok(self.bank.call(async || charge(&self.bank_is_away).await).await?)
    }

    /// Lets mails and the bank fail, one after the other.
    async fn fail(&self) -> Result<()> {
        self.mail_is_away.store(true, SeqCst);
        self.order_and_deliver(8).await?;
        Clock::tokio().sleep(MS(3_000)).await;
        self.bank_is_away.store(true, SeqCst);
        Ok(())
    }

    /// Begins orders, and deliveries of which each fourth has no address.
    async fn order_and_deliver(&self, n: u32) -> Result<()> {
        for number in 0..n {
            let (orders, order) = (self.orders.clone(), Order { account: number, charged: false });
            let id = format!("order-{number}");
            tokio::spawn(async move { orders.run(&id, order).await });
            let body =
                if number % 4 == 0 { format!("no address: <script>{number}</script>") } else { number.to_string() };
            self.deliveries.send_one(Message::new(body)).await?;
        }
        Ok(())
    }
}

/// A request to the bank.
async fn charge(away: &AtomicBool) -> io::Result<()> {
    Clock::tokio().sleep(MS(5)).await;
    match away.load(SeqCst) {
        true => Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the bank is away")),
        false => Ok(()),
    }
}

async fn serve(shop: &Shop, port: u16) -> Result<SocketAddr> {
    let app: Router = Router::new().nest_service("/console", shop.console.clone());
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(address)
}
