//! A shop whose bank is closed for a while: orders are accepted, kept in a SQLite file, and paid when the bank is open again.
//!
//! The shop is a separate process, which is killed twice: while it waits, and during the replay. The bank
//! counts the payments. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{
    collections::HashMap,
    error::Error,
    io::{self, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::{Path as Segments, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use clap::Parser;
use serde_json::json;
use steadfast::{
    Pipeline,
    backend::sqlite::{Sqlite, SqliteConfig},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    journal::{Entry, Gate, IDEMPOTENCY_KEY, Journal, JournalConfig, Replay, Replayed, Served},
    queue::Queue,
    time::{Clock, Instant},
    timeout::Timeout,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpListener,
    process::{Child, ChildStdin, ChildStdout, Command},
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ACCOUNTS: usize = 10;
/// Orders that are replayed per second.
const PACE: u32 = 50;
const PATIENCE: Duration = Duration::from_secs(180);

/// A shop defers orders while its bank is closed, and is killed twice.
#[derive(Parser)]
struct Args {
    /// Number of orders while the bank is closed.
    #[arg(long, default_value_t = 120)]
    orders: usize,
    #[arg(long, hide = true, requires = "file")]
    bank: Option<SocketAddr>,
    #[arg(long, hide = true)]
    file: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (args.bank, &args.file) {
        (Some(bank), Some(file)) => be_the_shop(bank, file).await.map(|()| true),
        _ => watch(args.orders.max(20)).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "journal: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- the shop ---------------------------------------------------------------------------------------------------------------

/// Reads orders from its input, `order account` each, and prints the result of each: paid, later, or failed. Ends with its input.
async fn be_the_shop(bank: SocketAddr, file: &Path) -> Result<()> {
    let sqlite = Sqlite::open(SqliteConfig::at(file))?;
    let half_a_second = Duration::from_millis(500);
    let breaker = CircuitBreaker::new(
        CircuitBreakerConfig::default().count_window(10, 3).open_for(half_a_second, half_a_second),
    )?;
    let pipeline = Pipeline::new().then(breaker.clone()).then(Timeout::new(Duration::from_secs(1)));
    let config = JournalConfig::default().per_second(PACE).visibility(Duration::from_secs(2));
    let journal = Journal::builder(Arc::new(sqlite.queue("orders")?), config).name("orders").build()?;
    let http = reqwest::Client::new();
    let pay = move |key: String, account: String, order: String| {
        let request = http.post(format!("http://{bank}/pay/{account}")).header(IDEMPOTENCY_KEY, key).body(order);
        async move { request.send().await?.error_for_status().map(drop) }
    };

    // Replays beside the service, through the same pipeline.
    tokio::spawn({
        let (journal, breaker, pipeline, pay) = (journal.clone(), breaker.clone(), pipeline.clone(), pay.clone());
        async move {
            let replay = |entry: Replay| {
                let (pipeline, pay) = (pipeline.clone(), pay.clone());
                let account = entry.order.clone().unwrap_or_default();
                let order = String::from_utf8_lossy(&entry.body).into_owned();
                async move {
                    Replayed::of_call(pipeline.call(|| pay(entry.key.clone(), account.clone(), order.clone())).await)
                }
            };
            journal.run(std::future::pending(), || Gate::of(&breaker), replay).await
        }
    });

    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(order) = orders.next_line().await? {
        let (order, account) = order.split_once(' ').ok_or("an order without an account")?;
        // The same key at each attempt, in each process.
        let key = format!("pay {order}");
        let result = pipeline.call(|| pay(key.clone(), account.to_owned(), order.to_owned())).await;
        let entry = || Entry::new(key.clone(), order.to_owned()).in_order_of(account);
        let served = journal.or_defer(result, entry).await;
        let said = match served {
            Ok(Served::Now(())) => "paid",
            Ok(Served::Later) => "later",
            Err(_) => "failed",
        };
        writeln!(io::stdout().lock(), "{said}")?;
    }
    Ok(())
}

// ---- the bank ---------------------------------------------------------------------------------------------------------------

#[derive(Default)]
struct Books {
    is_closed: bool,
    /// Keys of the payments: a key is paid once.
    keys: Vec<String>,
    /// Payments by order and account, in their order.
    paid: Vec<(String, String)>,
    /// Times of all payment requests, repeated ones included.
    told: Vec<(String, Instant)>,
}

#[derive(Clone, Default)]
struct Bank {
    books: Arc<Mutex<Books>>,
    clock: Clock,
}

impl Bank {
    async fn open() -> Result<(Self, SocketAddr)> {
        let bank = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new().route("/pay/{account}", post(pay)).with_state(bank.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok((bank, address))
    }

    fn books<T>(&self, look: impl FnOnce(&mut Books) -> T) -> T {
        look(&mut self.books.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn paid(&self) -> usize {
        self.books(|books| books.paid.len())
    }
}

async fn pay(
    State(bank): State<Bank>,
    Segments(account): Segments<String>,
    headers: HeaderMap,
    order: String,
) -> StatusCode {
    let Some(Ok(key)) = headers.get(IDEMPOTENCY_KEY).map(|key| key.to_str()) else { return StatusCode::BAD_REQUEST };
    let now = bank.clock.now();
    let open = bank.books(|books| {
        if books.is_closed {
            return false;
        }
        books.told.push((key.to_owned(), now));
        if !books.keys.iter().any(|before| before == key) {
            books.keys.push(key.to_owned());
            books.paid.push((order, account));
        }
        true
    });
    // Time for a kill between the payment and its answer.
    bank.clock.sleep(Duration::from_millis(10)).await;
    if open { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

// ---- the control ------------------------------------------------------------------------------------------------------------

struct Shop {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Shop {
    fn open(bank: SocketAddr, file: &Path) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--bank", &bank.to_string(), "--file"])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or("a process without pipes")?;
        Ok(Self { child, stdin, lines: BufReader::new(stdout).lines() })
    }

    async fn order(&mut self, key: &str, account: &str) -> Result<String> {
        self.stdin.write_all(format!("{key} {account}\n").as_bytes()).await?;
        Ok(self.lines.next_line().await?.ok_or("the shop has ended by itself")?)
    }

    /// `kill -9`.
    async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// Orders, and the shop's result for each.
#[derive(Default)]
struct Orders {
    said: Vec<(String, String)>,
}

impl Orders {
    async fn place(&mut self, shop: &mut Shop, n: usize) -> Result<()> {
        for _ in 0..n {
            let number = self.said.len();
            let key = format!("order-{number:04}");
            let said = shop.order(&key, &format!("account-{}", number % ACCOUNTS)).await?;
            self.said.push((key, said));
        }
        Ok(())
    }

    fn count(&self, what: &str) -> usize {
        self.said.iter().filter(|(_, said)| said == what).count()
    }
}

async fn watch(orders: usize) -> Result<bool> {
    let (folder, clock, mut out) = (tempfile::tempdir()?, Clock::tokio(), io::stdout());
    let file = folder.path().join("orders.db");
    let (bank, address) = Bank::open().await?;
    let mut shop = Shop::open(address, &file)?;
    let mut placed = Orders::default();

    placed.place(&mut shop, 20).await?;
    writeln!(out, "\n  the bank is open:   {} orders are paid at once", bank.paid())?;
    bank.books(|books| books.is_closed = true);
    placed.place(&mut shop, orders / 2).await?;
    let waiting = placed.count("later");
    shop.kill().await?;
    writeln!(out, "  the bank is closed: {waiting} are accepted for later; the shop is killed")?;
    shop = Shop::open(address, &file)?;
    placed.place(&mut shop, orders - orders / 2).await?;
    let later = placed.count("later");
    writeln!(out, "  it starts again:    {} more", later - waiting)?;

    let before = bank.paid();
    let opened = clock.now();
    bank.books(|books| books.is_closed = false);
    let until = async |n: usize| -> Result<()> {
        while bank.paid() < n {
            if clock.now() > opened + PATIENCE {
                return Err(format!("{} of {n} are paid, and no more come", bank.paid()).into());
            }
            clock.sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    };
    until(before + later / 3).await?;
    shop.kill().await?;
    let killed_at = bank.paid() - before;
    writeln!(out, "  the bank is open:   the shop replays, and is killed after {killed_at}")?;
    shop = Shop::open(address, &file)?;
    let accepted = placed.count("paid") + later;
    until(accepted).await?;
    let took = clock.now() - opened;
    // All repeated requests have arrived by now.
    clock.sleep(Duration::from_secs(3)).await;
    shop.kill().await?;

    let queue = Sqlite::open(SqliteConfig::at(&file))?.queue("orders")?;
    let left = queue.depth().await?.total();
    let dead = queue.dead_letters().ok_or("no dead letters")?.depth().await?.total();
    let (paid, told) = bank.books(|books| (books.paid.clone(), books.told.clone()));
    let mut times: HashMap<&str, usize> = HashMap::new();
    for (key, _) in &paid {
        *times.entry(key).or_default() += 1;
    }
    let of = |what: &'static str| placed.said.iter().filter(move |(_, said)| said == what).map(|(key, _)| key.as_str());
    let lost = of("paid").chain(of("later")).filter(|key| !times.contains_key(key)).count();
    let doubled = times.values().filter(|times| **times > 1).count();
    // The deferred orders of each account are paid in their order.
    let waited: Vec<&str> = of("later").collect();
    let in_order = |account: usize| {
        let account = format!("account-{account}");
        let paid = paid.iter().filter(|(key, of)| *of == account && waited.contains(&key.as_str()));
        paid.map(|(key, _)| key).is_sorted()
    };
    let disorder = (0..ACCOUNTS).filter(|account| !in_order(*account)).count();
    // Replays keep the rate; the first replay of a restarted shop is not limited by the last one before.
    let replays: Vec<Instant> = told[20..].iter().map(|(_, at)| *at).collect();
    let in_a_second =
        |from: &Instant| replays.iter().filter(|at| (*from..*from + Duration::from_secs(1)).contains(at)).count();
    let fastest = replays.iter().map(in_a_second).max().unwrap_or(0);
    let repeated = told.len() - paid.len();
    writeln!(
        out,
        "  all are paid after {:.1} s, at most {fastest} in a second; {repeated} were requested again under their key, {doubled} paid twice, {lost} lost\n",
        took.as_secs_f64()
    )?;
    let summary = json!({ "orders": placed.said.len(), "paid_at_once": placed.count("paid"), "deferred": later,
        "failed": placed.count("failed"), "lost": lost, "doubled": doubled, "told_again": repeated, "out_of_order": disorder,
        "left": left, "dead_letters": dead, "most_in_a_second": fastest });
    writeln!(out, "summary: {summary}")?;
    Ok(lost == 0
        && doubled == 0
        && disorder == 0
        && (left, dead) == (0, 0)
        && paid.len() == accepted
        && later > orders / 2
        // One more for each start of the shop.
        && fastest <= PACE as usize * 2 + 2)
}
