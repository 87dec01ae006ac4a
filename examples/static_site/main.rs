//! Releases of a site over HTTP on loopback: visitors load pages, and files of pages that they opened a while ago, while
//! publishers and pruners are killed at each of their steps.
//!
//! Two services render pages and serve the files of a bucket, which is a folder that all processes share. A release has
//! 1,000 files, of which the next one changes ten. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
mod browser;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/browser.rs"]
mod devtools;
#[path = "../common/engine.rs"]
mod engine;
mod stepwise;

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Path as UrlPath, State},
    response::{IntoResponse, Response},
    routing::get,
};
use clap::Parser;
use common::{Result, say};
use engine::{Engine, EngineAt};
use http::StatusCode;
use hyper::body::Bytes;
use object_store::{ObjectStoreExt as _, local::LocalFileSystem};
use serde_json::json;
use steadfast::{
    entropy::Entropy,
    lease::StoreLease,
    static_content::{CacheControl, Release, SiteConfig, SiteError, SitePublisher, StaticSite},
    time::{Clock, Instant},
};
use stepwise::Steps;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
    process::{Child, Command},
};

/// Publishes, rolls back and prunes releases of a site, while visitors load its pages and processes are killed.
#[derive(Parser, Clone)]
struct Args {
    /// Number of files of a release: a page, and scripts.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(100..=5_000))]
    files: u32,
    /// Most kills of publishers, and of pruners: at their first, second, .. step. By default at each of them.
    #[arg(long, default_value_t = 1_000)]
    kills: u32,
    /// Number of visitors.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    visitors: u32,
    /// Place of the releases and of the lease: `sqlite:FILE`, the URL of a server, or `postgres`, `redis` or `nats` for a
    /// server of this run. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Opens a page in this browser instead, such as `chromium`: it loads late files an hour after the next release.
    #[arg(long, value_name = "PROGRAM")]
    browser: Option<PathBuf>,
    /// Seed of the visitors.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Part that this process plays, and what it works on.
    #[arg(long, hide = true, requires = "folder")]
    role: Option<String>,
    #[arg(long, hide = true)]
    folder: Option<PathBuf>,
    #[arg(long, hide = true, default_value_t = 0)]
    value: u64,
}

/// Scripts that a release changes, beside its page.
const CHANGED: u64 = 9;
/// Files that a page links.
const LINKED: u64 = 20;
/// Time for which a file of a replaced release is kept, and that after which a visitor asks for the last file of a page.
const KEEP_FOR: Duration = Duration::from_secs(10);
const LATE: Duration = Duration::from_secs(8);

fn config() -> SiteConfig {
    SiteConfig::at("http://127.0.0.1/")
        .keep_releases(2)
        .keep_for(KEEP_FOR)
        .poll_interval(Duration::from_secs(1))
        .call_timeout(Duration::from_millis(750))
        .lease_term(Duration::from_secs(3))
}

/// Returns the text of a script in the `content`-th state of the site: it names the state that changed it last.
fn text(files: u64, file: u64, content: u64) -> String {
    let by = (1..=content).rev().find(|by| (file + files - (by - 1) * CHANGED % files) % files < CHANGED);
    format!("file {file} of {}", by.unwrap_or(0))
}

fn path(file: u64) -> String {
    format!("files/{file}.js")
}

/// Writes the files of a state into a directory, as a bundler does.
fn build(dir: &Path, files: u64, content: u64) -> Result<()> {
    fs::create_dir_all(dir.join("files"))?;
    fs::write(dir.join("index.html"), content.to_string())?;
    for file in 0..files {
        fs::write(dir.join(path(file)), text(files, file, content))?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(program) = &args.browser {
        return exit(browser::open(program).await);
    }
    let done = match (args.role.as_deref(), &args.folder, Engine::of_parent()) {
        (Some("service"), Some(folder), Some(engine)) => run_service(&args, folder, &engine).await.map(|()| true),
        (Some(role), Some(folder), Some(engine)) => run_job(role, args.value, folder, &engine).await.map(|()| true),
        _ => watch(&args).await,
    };
    exit(done)
}

fn exit(done: Result<bool>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "static_site: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bucket(folder: &Path) -> Result<LocalFileSystem> {
    Ok(LocalFileSystem::new_with_prefix(folder.join("bucket"))?)
}

// ---- a service --------------------------------------------------------------------------------------------------------------

#[derive(Clone)]
struct Service {
    site: StaticSite,
    bucket: Arc<LocalFileSystem>,
    scripts: u64,
}

async fn run_service(args: &Args, folder: &Path, engine: &Engine) -> Result<()> {
    let backend = engine.open().await?;
    let site = StaticSite::builder(backend.store(), engine.name("shop"), config()).notifier(backend.notifier());
    let site = site.build().await?;
    let service = Service { site: site.clone(), bucket: Arc::new(bucket(folder)?), scripts: u64::from(args.files) - 1 };
    let app = Router::new().route("/", get(page)).route("/{*path}", get(file)).with_state(service);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    say(format!("at {}", listener.local_addr()?));
    tokio::spawn(async move { site.run(std::future::pending()).await });
    Ok(axum::serve(listener, app).await?)
}

/// Renders a page: the number of its state, and links to some of its files, all by one snapshot.
async fn page(State(service): State<Service>) -> Response {
    let snapshot = service.site.snapshot();
    let Some(entry_point) = snapshot.entry_point("index.html") else { return StatusCode::NOT_FOUND.into_response() };
    let Ok(content) = read(&service.bucket, &entry_point.key).await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let mut html = String::from_utf8_lossy(&content).into_owned();
    let start = Entropy::from_os().up_to(service.scripts - 1);
    for file in (0..LINKED).map(|i| (start + i * 53) % service.scripts) {
        let url = snapshot.url(&path(file)).and_then(|url| url.strip_prefix("http://127.0.0.1/"));
        html.push_str(&format!("\n{file} {}", url.unwrap_or("missing")));
    }
    ([("cache-control", "no-cache"), ("etag", &entry_point.etag)], html).into_response()
}

async fn file(State(service): State<Service>, UrlPath(path): UrlPath<String>) -> Response {
    let mut caching = service.site.snapshot().cache_control(&path);
    // The other service may know a release that this one has not seen yet.
    if caching == CacheControl::Unknown && service.site.refresh().await.is_ok() {
        caching = service.site.snapshot().cache_control(&path);
    }
    let headers = [("cache-control", caching.header())];
    match caching {
        CacheControl::Unknown => (StatusCode::NOT_FOUND, headers).into_response(),
        _ => match read(&service.bucket, &path).await {
            Ok(bytes) => (headers, bytes).into_response(),
            Err(_) => (StatusCode::NOT_FOUND, [("cache-control", "no-store")]).into_response(),
        },
    }
}

async fn read(bucket: &LocalFileSystem, key: &str) -> object_store::Result<Bytes> {
    bucket.get(&key.into()).await?.bytes().await
}

// ---- a job: it publishes, rolls back or prunes ------------------------------------------------------------------------------

async fn run_job(role: &str, value: u64, folder: &Path, engine: &Engine) -> Result<()> {
    let backend = engine.open().await?;
    let steps = Steps::new();
    // The lease lies in the store, so its writes are steps, too.
    let store = steps.of_store(backend.store());
    let leases = Arc::new(StoreLease::builder(store.clone()).partition(&engine.name("leases")).build()?);
    let bucket = steps.of_bucket(Arc::new(bucket(folder)?));
    let publisher = SitePublisher::builder(bucket, store, leases, engine.name("shop"), config());
    let publisher = publisher.notifier(backend.notifier()).build()?;
    loop {
        let done = match role {
            "publish" => {
                let release = Release::from_dir(folder.join("dist"))?.entry_points(["index.html"]);
                publisher.publish(release).await
            }
            "rollback" => publisher.rollback(value).await,
            _ => publisher.prune().await.map(|pruned| pruned.files as u64),
        };
        match done {
            Ok(number) => {
                say(format!("done {number} {}", steps.puts()));
                return Ok(());
            }
            // The one before was killed, or the machine is slow.
            Err(SiteError::Busy { .. } | SiteError::LeaseLost | SiteError::BucketTimedOut(_)) => {
                Clock::tokio().sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

// ---- the control, and the visitors ------------------------------------------------------------------------------------------

/// Result of a job: its number, and its puts; `None` if it was killed.
type Done = Option<(u64, u64)>;

struct Control {
    folder: PathBuf,
    files: u32,
    kills: u32,
}

impl Control {
    fn start(&self, role: &str, value: u64, engine: &Engine) -> Result<Child> {
        Ok(Command::new(std::env::current_exe()?)
            .args(["--role", role, "--value", &value.to_string(), "--files", &self.files.to_string(), "--folder"])
            .arg(&self.folder)
            .envs(engine.variables())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?)
    }

    /// Runs a job, and kills it before its `nth` step, counted from 1 and from the grant of the lease.
    async fn job(&mut self, role: &str, value: u64, engine: &Engine, nth: Option<u32>) -> Result<Done> {
        let mut job = self.start(role, value, engine)?;
        let (mut input, output) = job.stdin.take().zip(job.stdout.take()).ok_or("no pipes")?;
        let (mut lines, mut step) = (BufReader::new(output).lines(), 0);
        while let Some(line) = lines.next_line().await? {
            if let Some(done) = line.strip_prefix("done ") {
                let (number, puts) = done.split_once(' ').ok_or("no numbers")?;
                job.wait().await?;
                return Ok(Some((number.parse()?, puts.parse()?)));
            }
            step += 1;
            if Some(step) == nth {
                job.kill().await?;
                self.kills += 1;
                return Ok(None);
            }
            input.write_all(b"\n").await?;
        }
        Err(format!("the job `{role}` ended: {}", job.wait().await?).into())
    }

    /// Runs a job that is killed before its first, second, .. step, until one of them has no such step, or there were
    /// enough kills. Returns the number of the job that was done.
    async fn until_done(
        &mut self,
        role: &'static str,
        most: u32,
        engine: &Engine,
        kills: &mut BTreeMap<&str, u32>,
    ) -> Result<u64> {
        for nth in 1.. {
            if let Some((number, _)) = self.job(role, 0, engine, (nth <= most).then_some(nth)).await? {
                kills.insert(role, nth - 1);
                return Ok(number);
            }
        }
        Err("it never ends".into())
    }
}

/// What visitors have seen.
#[derive(Default)]
struct Seen {
    pages: AtomicU64,
    late: AtomicU64,
    missing: AtomicU64,
    ends: AtomicBool,
}

/// Loads a page after the other, with all files but one, for which it asks a while later.
async fn visit(services: Vec<String>, files: u64, seed: u64, seen: Arc<Seen>) -> Result<()> {
    let (clock, entropy, client) = (Clock::tokio(), Entropy::from_seed(seed), reqwest::Client::new());
    let any = || &services[entropy.up_to(services.len() as u64 - 1) as usize];
    let mut late: VecDeque<(Instant, u64, u64, String)> = VecDeque::new();
    let look = async |content: u64, file: u64, key: &str| -> Result<()> {
        let answer = client.get(format!("{}/{key}", any())).send().await?;
        let (status, body) = (answer.status(), answer.text().await?);
        if status != 200 || body != text(files, file, content) {
            seen.missing.fetch_add(1, SeqCst);
            say(format!("  MISSING {key} of state {content}: {status} {body}"));
        }
        Ok(())
    };
    loop {
        let ends = seen.ends.load(SeqCst);
        while late.front().is_some_and(|(at, ..)| *at <= clock.now()) {
            if let Some((_, content, file, key)) = late.pop_front() {
                look(content, file, &key).await?;
                seen.late.fetch_add(1, SeqCst);
            }
        }
        if ends {
            return Ok(());
        }
        let answer = client.get(format!("{}/", any())).send().await?;
        let (status, page) = (answer.status(), answer.text().await?);
        let mut lines = page.lines();
        let content: u64 =
            lines.next().unwrap_or_default().parse().map_err(|_| format!("a page says {status} {page}"))?;
        let mut links = Vec::new();
        for line in lines {
            let (file, key) = line.split_once(' ').ok_or("no link")?;
            links.push((file.parse()?, key.to_owned()));
        }
        if let Some((file, key)) = links.pop() {
            late.push_back((clock.now() + LATE, content, file, key));
        }
        for (file, key) in links {
            look(content, file, &key).await?;
        }
        seen.pages.fetch_add(1, SeqCst);
        clock.sleep(Duration::from_millis(20)).await;
    }
}

async fn watch(args: &Args) -> Result<bool> {
    let (folder, clock, files) = (tempfile::tempdir()?, Clock::tokio(), u64::from(args.files) - 1);
    fs::create_dir(folder.path().join("bucket"))?;
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "site.db")?;
    let mut control = Control { folder: folder.path().to_owned(), files: args.files, kills: 0 };
    let dist = folder.path().join("dist");
    say(format!("  a site of {} files, with its releases on one {}", args.files, engine.place()));

    // Two releases without a fault.
    build(&dist, files, 1)?;
    let first = control.job("publish", 0, &engine, None).await?.ok_or("killed")?;
    let mut services = Vec::new();
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut service = control.start("service", 0, &engine)?;
        let mut lines = BufReader::new(service.stdout.take().ok_or("no pipe")?).lines();
        let line = lines.next_line().await?.ok_or("the service ended")?;
        services.push(format!("http://{}", line.strip_prefix("at ").ok_or("no address")?));
        running.push((service, lines));
    }
    let seen = Arc::new(Seen::default());
    let visitors: Vec<_> = (0..u64::from(args.visitors))
        .map(|i| tokio::spawn(visit(services.clone(), files, args.seed.wrapping_add(i), seen.clone())))
        .collect();
    build(&dist, files, 2)?;
    let second = control.job("publish", 0, &engine, None).await?.ok_or("killed")?;
    say(format!("  release {} made {} puts, release {} made {}", first.0, first.1, second.0, second.1));

    // Publishers of one state that are killed before their first, second, .. step, until one has no such step.
    let (mut kills, mut pruned) = (BTreeMap::new(), 0);
    build(&dist, files, 3)?;
    control.until_done("publish", args.kills, &engine, &mut kills).await?;
    for content in 4..=6 {
        build(&dist, files, content)?;
        control.job("publish", 0, &engine, None).await?.ok_or("killed")?;
    }
    // So that there is something to prune.
    clock.sleep(KEEP_FOR + Duration::from_secs(4)).await;
    pruned += control.until_done("prune", args.kills, &engine, &mut kills).await?;
    say(format!("  kills: {kills:?}"));
    // Back to the release before, and on again.
    let last = control.job("publish", 0, &engine, None).await?.ok_or("killed")?.0;
    let back = control.job("rollback", last - 1, &engine, None).await?.ok_or("killed")?;
    clock.sleep(KEEP_FOR + Duration::from_secs(4)).await;
    pruned += control.job("prune", 0, &engine, None).await?.ok_or("killed")?.0;
    clock.sleep(LATE).await;
    seen.ends.store(true, SeqCst);
    for visitor in visitors {
        visitor.await??;
    }
    for (service, _) in &mut running {
        service.kill().await?;
    }
    let [pages, late, missing_files] = [&seen.pages, &seen.late, &seen.missing].map(|count| count.load(SeqCst));
    let left = fs::read_dir(folder.path().join("bucket/files"))?.count();
    say(format!("  {late} files were asked for {LATE:?} after their pages; the bucket has {left} files of releases"));
    let summary = json!({ "releases": back.0, "pages": pages, "missing_files": missing_files, "pruned": pruned,
        "uploads_second_release": second.1, "kills": control.kills, "late": late, "uploads_rollback": back.1 });
    say(format!("\nsummary: {summary}"));
    // The pages are files, too.
    let is_right = missing_files == 0 && second.1 == CHANGED + 1 && back.1 == 0;
    // Of two releases that are kept, and nothing of those that were killed.
    let is_clean = left as u64 <= files + 2 * CHANGED;
    Ok(is_right && is_clean && pages > 0 && late > 0 && pruned > 0 && control.kills > 0)
}
