//! CQRS over HTTP: 1,000 clients send commands to accounts, by call and by queue, and read a view of them.
//!
//! Each command has an id, under which it is accepted once, and its answer has a token. A client that reads without the token
//! may see the past: the first clients do, since the view begins to follow behind their reads. One that sends it back sees its
//! own command. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use clap::Parser;
use common::{Answer, Http, Result, answer, number, say, serve};
use engine::EngineAt;
use hyper::{
    HeaderMap, Method, Request,
    body::Incoming,
    header::{HeaderName, HeaderValue},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::{
    codec::Codec,
    event_sourcing::{Aggregate, AggregateConfig, AggregateStore, EventCodec, EventStore, ExecuteError, Token},
    materialized_view::{Projection, Sourced, View, ViewConfig},
    queue::{Message, Queue, QueueExt as _},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
    store::{Key, PutOptions, Store},
    time::Clock,
    work::IdleConfig,
};
use tokio::sync::Notify;

/// Serves commands and reads to many clients at once.
#[derive(Parser, Clone)]
struct Args {
    /// Number of clients, each with an account of its own.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Number of commands of each client.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    commands: u32,
    /// Place of log, view and queue: `memory`, `sqlite:FILE`, the URL of a server, or `postgres` or `redis` for a server of this
    /// run. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    common::end(run(&args).await)
}

// ---- the write side ---------------------------------------------------------------------------------------------------------

#[derive(Default, Clone)]
struct Account {
    cents: u64,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
enum Ask {
    Deposit(u64),
    Withdraw(u64),
}

#[derive(Serialize, Deserialize)]
enum Moved {
    In(u64),
    Out(u64),
}

#[derive(Debug)]
struct TooLittle;

impl Aggregate for Account {
    type Command = Ask;
    type Event = Moved;
    type Error = TooLittle;

    fn decide(&self, ask: &Ask) -> std::result::Result<Vec<Moved>, TooLittle> {
        match *ask {
            Ask::Deposit(cents) => Ok(vec![Moved::In(cents)]),
            Ask::Withdraw(cents) if cents > self.cents => Err(TooLittle),
            Ask::Withdraw(cents) => Ok(vec![Moved::Out(cents)]),
        }
    }

    fn evolve(&mut self, event: &Moved) {
        match event {
            Moved::In(cents) => self.cents += cents,
            Moved::Out(cents) => self.cents -= cents,
        }
    }
}

// ---- the read side ----------------------------------------------------------------------------------------------------------

/// The number of moves of an account, and what is on it.
#[derive(Serialize, Deserialize, Default)]
struct Statement {
    moves: u64,
    cents: u64,
}

struct Statements;

impl Projection for Statements {
    type Event = Moved;
    type Row = Statement;

    fn keys(&self, moved: &Sourced<Moved>) -> Vec<String> {
        moved.stream.iter().cloned().collect()
    }

    fn fold(&self, _: &str, row: Option<Statement>, moved: &Sourced<Moved>) -> Option<Statement> {
        let Statement { moves, cents } = row.unwrap_or_default();
        let cents = match moved.event {
            Moved::In(more) => cents + more,
            Moved::Out(less) => cents - less,
        };
        Some(Statement { moves: moves + 1, cents })
    }
}

fn json<T: Serialize + for<'a> Deserialize<'a> + 'static>() -> Codec<T> {
    Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
}

// ---- the service ------------------------------------------------------------------------------------------------------------

struct Service {
    accounts: AggregateStore<Account>,
    statements: View<Statements>,
    commands: Arc<dyn Queue>,
    /// Answers to commands from the queue.
    answers: Arc<dyn Store>,
}

const TOKEN: HeaderName = HeaderName::from_static("token");
/// Time for which an answer is kept.
const KEPT: Duration = Duration::from_secs(600);
/// Time for which a read waits for its token.
const PATIENCE: Duration = Duration::from_secs(180);

/// A command as it lies in the queue.
#[derive(Serialize, Deserialize)]
struct Command {
    account: String,
    id: String,
    ask: Ask,
}

impl Service {
    async fn open(args: &Args, folder: &std::path::Path) -> Result<(Arc<Self>, engine::Engine)> {
        let engine = match &args.backend {
            Some(backend) => backend.start()?,
            None => EngineAt::start_shared(None, folder, "accounts.db")?,
        };
        let backend = engine.open().await?;
        let log = EventStore::open(backend.store(), engine.name("accounts")).await?;
        let codec = EventCodec::new(json(), |_: &Moved| "Moved");
        let idle = IdleConfig::between(Duration::from_millis(5), Duration::from_millis(200));
        let config = ViewConfig::default().idle(idle);
        let statements = View::builder(backend.store(), engine.name("statements"), Statements, json(), config)
            .source(log.topic(), codec.clone())
            .build()?;
        let accounts = AggregateStore::new(log, codec, AggregateConfig::default())?;
        let commands = backend.queue(&engine.name("commands")).await?;
        Ok((Arc::new(Self { accounts, statements, commands, answers: backend.store() }), engine))
    }

    /// Executes a command, and returns the status of its answer, with the token if it was accepted.
    async fn execute(&self, Command { account, id, ask }: Command) -> Result<(u16, String)> {
        match self.accounts.execute(&account, id, ask).await {
            Ok(done) => Ok((200, done.token.map_or_else(String::new, |token| token.to_string()))),
            // A rejection is an answer: it is not tried again.
            Err(ExecuteError::Rejected(TooLittle)) => Ok((409, "there is too little".to_owned())),
            Err(error) => Err(format!("{error}").into()),
        }
    }

    /// Handles commands from the queue. Those of one account come in order.
    async fn work(&self) -> Result<()> {
        let listener = QueueListener::new(self.commands.clone(), QueueListenerConfig::default())?;
        let handle = async |work: Work| {
            let Ok(command) = serde_json::from_slice::<Command>(&work.body) else {
                return Disposition::dead_letter("this is no command");
            };
            let row = command.id.clone();
            let done = match self.execute(command).await {
                Ok(done) => done,
                Err(error) => return Disposition::retry(error),
            };
            let Ok(body) = serde_json::to_vec(&done) else { return Disposition::dead_letter("no answer") };
            let key = Key::new("answers", &row);
            match self.answers.put(key, body.into(), PutOptions::new().ttl(KEPT)).await {
                Ok(_) => Disposition::Complete,
                Err(error) => Disposition::retry(error),
            }
        };
        Ok(listener.run(std::future::pending(), handle).await?)
    }

    /// `POST /ACCOUNT/deposit|withdraw/CENTS/ID/call|queue`, `GET /answers/ID`, `GET /ACCOUNT`.
    async fn serve(&self, request: Request<Incoming>) -> Answer {
        let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
        let served = match (request.method(), &path[..]) {
            (&Method::POST, [account, what, cents, id, way]) => self.command((account, what, cents), id, way).await,
            (&Method::GET, ["answers", id]) => self.answered(id).await,
            (&Method::GET, [account]) => self.read(account, request.headers().get(TOKEN)).await,
            _ => Ok(answer(404, "")),
        };
        served.unwrap_or_else(|error| answer(503, error))
    }

    async fn command(&self, (account, what, cents): (&str, &str, &str), id: &str, way: &str) -> Result<Answer> {
        let cents = cents.parse()?;
        let ask = if what == "deposit" { Ask::Deposit(cents) } else { Ask::Withdraw(cents) };
        let command = Command { account: account.to_owned(), id: id.to_owned(), ask };
        if way == "queue" {
            let message = Message::new(serde_json::to_vec(&command)?).group(account);
            self.commands.send_one(message).await?;
            return Ok(answer(202, id));
        }
        Ok(told(self.execute(command).await?))
    }

    async fn answered(&self, id: &str) -> Result<Answer> {
        match self.answers.get(Key::new("answers", id)).await? {
            Some(record) => Ok(told(serde_json::from_slice(&record.value)?)),
            None => Ok(answer(202, id)),
        }
    }

    async fn read(&self, account: &str, token: Option<&HeaderValue>) -> Result<Answer> {
        let read = match token {
            Some(token) => {
                let token: Token = token.to_str()?.parse()?;
                self.statements.get_after(account, &token, PATIENCE).await?
            }
            None => self.statements.get(account).await?,
        };
        Ok(answer(200, read.row.unwrap_or_default().moves))
    }
}

/// An answer with the token as header, if there is one.
fn told((status, text): (u16, String)) -> Answer {
    let mut told = answer(status, &text);
    if let (200, Ok(token)) = (status, HeaderValue::from_str(&text)) {
        told.headers_mut().insert(TOKEN, token);
    }
    told
}

// ---- the clients ------------------------------------------------------------------------------------------------------------

#[derive(Default)]
struct Seen {
    /// Reads without a token, before the view follows.
    early: AtomicU64,
    follows: Notify,
    stale_without_token: AtomicU64,
    stale_with_token: AtomicU64,
    failed_reads: AtomicU64,
    commands: AtomicU64,
    rejected: AtomicU64,
    by_queue: AtomicU64,
}

impl Seen {
    /// Counts a read: one that failed, or one that does not have all moves.
    fn read(&self, told: &Answer, moves: u64, stale: &AtomicU64) {
        match number(told).filter(|_| told.status() == 200) {
            Some(seen) => stale.fetch_add(u64::from(seen < moves), Relaxed),
            None => self.failed_reads.fetch_add(1, Relaxed),
        };
    }
}

/// A client in ten asks for more than it has, once, which is rejected.
fn withdraws(nth: u32, round: u32) -> bool {
    nth.is_multiple_of(10) && round == 1
}

/// Number of clients that read before the view follows.
fn early(clients: u32) -> u64 {
    u64::from(clients.min(100))
}

/// Sends commands, and reads after each, at first without its token.
async fn client(http: &Http, server: SocketAddr, (nth, args): (u32, &Args), seen: &Seen) -> Result<u64> {
    let mut moves = 0;
    for round in 0..args.commands {
        let what = if withdraws(nth, round) { "withdraw/1000000" } else { "deposit/100" };
        let way = if (nth + round).is_multiple_of(4) { "queue" } else { "call" };
        let id = format!("command-{nth}-{round}");
        let path = format!("/account-{nth}/{what}/{id}/{way}");
        let mut told = http.post_with(server, &path, HeaderMap::new()).await?;
        // A client in seven repeats its command, as after a lost answer.
        if nth.is_multiple_of(7) {
            told = http.post_with(server, &path, HeaderMap::new()).await?;
        }
        while told.status() == 202 {
            Clock::tokio().sleep(Duration::from_millis(5)).await;
            told = http.get(server, &format!("/answers/{id}")).await?;
        }
        seen.commands.fetch_add(1, Relaxed);
        seen.by_queue.fetch_add(u64::from(way == "queue"), Relaxed);
        match told.status().as_u16() {
            200 => moves += 1,
            409 => drop(seen.rejected.fetch_add(1, Relaxed)),
            status => return Err(format!("{status} for {path}: {:?}", told.body()).into()),
        }
        let Some(token) = told.headers().get(TOKEN).cloned() else { continue };
        let path = format!("/account-{nth}");
        let without = http.get(server, &path).await?;
        seen.read(&without, moves, &seen.stale_without_token);
        if round == 0 && seen.early.fetch_add(1, Relaxed) + 1 == early(args.clients) {
            seen.follows.notify_one();
        }
        let with = http.get_with(server, &path, [(TOKEN, token)].into_iter().collect()).await?;
        seen.read(&with, moves, &seen.stale_with_token);
    }
    Ok(moves)
}

async fn run(args: &Args) -> Result<(Value, bool)> {
    let (folder, clock) = (tempfile::tempdir()?, Clock::tokio());
    let (service, engine) = Service::open(args, folder.path()).await?;
    let seen = Arc::new(Seen::default());
    // It is served once, and follows when the first clients have read.
    service.statements.run(async { drop(service.statements.ready().await) }).await?;
    let (projector, worker, behind) = (service.clone(), service.clone(), seen.clone());
    let projects = tokio::spawn(async move {
        behind.follows.notified().await;
        projector.statements.run(std::future::pending()).await
    });
    let works = tokio::spawn(async move { worker.work().await });
    let served = service.clone();
    let server = serve(move |request| {
        let service = served.clone();
        async move { service.serve(request).await }
    })
    .await?;
    say(format!("  {} clients on http://{server}, over one {}", args.clients, engine.place()));

    let (began, http) = (clock.now(), Http::new());
    let clients = (0..args.clients).map(|nth| client(&http, server, (nth, args), &seen));
    let moves = futures::future::try_join_all(clients).await?;
    let took = (clock.now() - began).as_secs_f64();

    // What each account has, against what its client was told.
    let (mut doubled, mut lost) = (0, 0);
    for (nth, moves) in moves.iter().enumerate() {
        let has = service.accounts.history(&format!("account-{nth}")).await?.len() as u64;
        doubled += has.saturating_sub(*moves);
        lost += moves.saturating_sub(has);
    }
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let (without, with) = (count(&seen.stale_without_token), count(&seen.stale_with_token));
    say(format!("  {} commands in {took:.1} s, {} of them by queue", count(&seen.commands), count(&seen.by_queue)));
    let (commands, rejected, failed) = (count(&seen.commands), count(&seen.rejected), count(&seen.failed_reads));
    let stopped = u32::from(projects.is_finished()) + u32::from(works.is_finished());
    let summary = json!({ "clients": args.clients, "stale_without_token": without, "stale_with_token": with,
        "failed_reads": failed, "commands": commands, "rejected": rejected, "doubled": doubled, "lost": lost,
        "stopped": stopped });
    let all = (0..args.clients).flat_map(|nth| (0..args.commands).map(move |round| (nth, round)));
    let to_reject = all.filter(|&(nth, round)| withdraws(nth, round)).count() as u64;
    let is_as_asked =
        (commands, rejected) == (u64::from(args.clients) * u64::from(args.commands), to_reject) && stopped == 0;
    Ok((summary, is_as_asked && without >= early(args.clients) && (with, failed, doubled, lost) == (0, 0, 0, 0)))
}
