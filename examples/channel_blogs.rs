//! Consistency by queue: channels are deleted with all of their blogs by messages, while others post to them.
//!
//! A process takes the message, marks the channel, deletes its blogs page by page, then the channel, and completes the message. It
//! is killed at any step, and another one does it again. A post is one batch that requires the channel as it was read, so none is
//! accepted behind the mark. With `--plant source-order` a post looks at the channel before, and does not require it: blogs
//! without a channel are left.
//!
//! Editors count in the blogs of one more channel over HTTP. An answer has the version of the blog as its ETag, and a write
//! requires it by `If-Match`; one that comes late gets 412, and its editor reads again. With `--plant no-etags` the editors send
//! `If-Match: *`, and lose what others have counted. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use clap::{Parser, ValueEnum};
use common::{Answer, Http, Result, answer, number, say, serve};
use engine::{Engine, EngineAt};
use hyper::{
    HeaderMap, Method, Request,
    body::Incoming,
    header::{ETAG, HeaderValue, IF_MATCH},
};
use serde_json::{Value, json};
use steadfast::{
    entropy::Entropy,
    queue::{Message, Queue, QueueExt as _},
    store::{Key, Precondition, Scan, Store, StoreError, StoreExt as _, Version, Write},
    time::Clock,
};
use tokio::process::{Child, Command};

/// Deletes channels by messages, in processes that are killed.
#[derive(Parser, Clone)]
struct Args {
    /// Number of channels.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    channels: u32,
    /// Number of blogs of a channel before it is deleted.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    blogs: u32,
    /// Number of kills of a random process.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=1_000))]
    kills: u32,
    /// A mistake to plant.
    #[arg(long)]
    plant: Option<Plant>,
    /// Place of channels and queue: `sqlite:FILE`, the URL of a server, or `postgres` or `redis` for a server of this run. A
    /// temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Seed of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Plant {
    /// A post looks at the channel before, and does not require it.
    SourceOrder,
    /// An editor writes whatever the version of the blog is by now.
    NoEtags,
}

/// Time after which the message of a killed process comes again.
const VISIBILITY: Duration = Duration::from_secs(1);
/// Blogs that are deleted at a time.
const PAGE: usize = 5;
const CHANNEL: &str = "channel";
const PROCESSES: usize = 3;
const OPEN: &[u8] = b"open";
const DELETED: &[u8] = b"deleted";
/// Editors, and the blogs that they share.
const EDITORS: u64 = 8;
const EDITED: u64 = 3;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match Engine::of_parent() {
        Some(engine) => common::end(deletes(&engine).await.map(|()| (Value::Null, true))),
        None => common::end(watch(&args).await),
    }
}

async fn open(engine: &Engine) -> Result<(Arc<dyn Store>, Arc<dyn Queue>)> {
    let backend = engine.open().await?;
    Ok((backend.store(), backend.queue(&engine.name("deletions")).await?))
}

// ---- a process that deletes channels ----------------------------------------------------------------------------------------

async fn deletes(engine: &Engine) -> Result<()> {
    let ((store, queue), clock) = (open(engine).await?, Clock::tokio());
    loop {
        match queue.receive_one(VISIBILITY).await? {
            Some(delivery) => {
                let channel = std::str::from_utf8(&delivery.body)?;
                delete(&*store, channel, &clock).await?;
                // Behind its time another process may have it: that one completes it.
                let _ = queue.complete(&delivery.receipt).await;
            }
            None => clock.sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Deletes a channel. Each step may be done again, and each delete requires what was read: a process that is late deletes
/// nothing that it has not seen.
async fn delete(store: &dyn Store, channel: &str, clock: &Clock) -> Result<()> {
    let key = Key::new(channel, CHANNEL);
    // The mark: from now on its version is another one, and no post that has seen the former one is accepted.
    let marked = store.update(key, |found| found.is_some_and(|found| found.value != DELETED).then(|| DELETED.into()));
    let Some(marked) = marked.await? else { return Ok(()) };
    loop {
        let blogs = store.scan(&Scan::partition(channel).prefix("blog/").limit(PAGE)).await?;
        let is_last = blogs.next.is_none();
        let writes = blogs.rows.into_iter().map(|blog| Write::delete(blog.row, Precondition::Version(blog.version)));
        let writes: Vec<_> = writes.collect();
        if !writes.is_empty() && !is_done(store.batch(channel, writes).await)? {
            // Another process has the message, too.
            continue;
        }
        clock.sleep(Duration::from_millis(5)).await;
        if is_last {
            break;
        }
    }
    // If it is gone, the other process was faster.
    is_done(store.delete(key, Precondition::Version(marked.version).into()).await)?;
    Ok(())
}

/// Returns `false` for a write whose row is another one by now.
fn is_done<T>(written: std::result::Result<T, StoreError>) -> Result<bool> {
    match written {
        Ok(_) => Ok(true),
        Err(StoreError::Conflict { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

// ---- blogs over HTTP --------------------------------------------------------------------------------------------------------

/// `GET /CHANNEL/BLOG`, and `POST /CHANNEL/BLOG/TEXT` with `If-Match`.
async fn blogs(store: &dyn Store, request: Request<Incoming>) -> Result<Answer> {
    let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
    let (channel, blog) = match path[..] {
        [channel, blog] | [channel, blog, _] => (channel, format!("blog/{blog}")),
        _ => return Ok(answer(404, "")),
    };
    if request.method() == Method::GET {
        let found = store.get(Key::new(channel, &blog)).await?;
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        return found.map_or_else(|| Ok(answer(404, "")), |found| tagged(200, text(&found.value), found.version));
    }
    let Some(when) = request.headers().get(IF_MATCH).map(precondition) else { return Ok(answer(428, "")) };
    let Some(when) = when else { return Ok(answer(400, "")) };
    let found = store.get(Key::new(channel, CHANNEL)).await?;
    let Some(found) = found.filter(|found| found.value == OPEN) else { return Ok(answer(404, "")) };
    // The channel as it was read, so that nobody writes a blog behind its mark.
    let check = Write::check_row(CHANNEL, Precondition::Version(found.version));
    let put = Write::put(blog, path.get(2).unwrap_or(&"").to_string(), when);
    match store.batch(channel, vec![check, put]).await {
        Ok(versions) => tagged(200, String::new(), versions[1].ok_or("a put has a version")?),
        Err(StoreError::Conflict { .. }) => Ok(answer(412, "")),
        Err(error) => Err(error.into()),
    }
}

/// Returns what an `If-Match` requires; `None` if it is none of ours.
fn precondition(etag: &HeaderValue) -> Option<Precondition> {
    match etag.to_str().ok()? {
        "*" => Some(Precondition::Any),
        etag => Some(Precondition::Version(Version::new(etag.strip_prefix('"')?.strip_suffix('"')?.parse().ok()?))),
    }
}

fn tagged(status: u16, body: String, version: Version) -> Result<Answer> {
    let mut tagged = answer(status, body);
    tagged.headers_mut().insert(ETAG, format!("\"{version}\"").parse()?);
    Ok(tagged)
}

/// Counts in blogs of a channel until the end: reads one, and writes one more.
async fn edits(
    (http, server, channel): (&Http, SocketAddr, &str),
    (args, nth): (&Args, u64),
    (edited, refused): (&AtomicU64, &AtomicU64),
    ends: &AtomicBool,
) -> Result<()> {
    let (entropy, clock) = (Entropy::from_seed(args.seed + 1_000 + nth), Clock::tokio());
    while !ends.load(Relaxed) {
        let path = format!("/{channel}/shared-{}", entropy.up_to(EDITED - 1));
        let read = http.get(server, &path).await?;
        let etag = read.headers().get(ETAG).ok_or("an answer has its version")?;
        let count = number(&read).ok_or("a blog is a number here")?;
        // An editor thinks for a while.
        clock.sleep(Duration::from_millis(entropy.up_to(50))).await;
        let etag = if args.plant == Some(Plant::NoEtags) { HeaderValue::from_static("*") } else { etag.clone() };
        let headers: HeaderMap = [(IF_MATCH, etag)].into_iter().collect();
        match http.post_with(server, &format!("{path}/{}", count + 1), headers).await?.status().as_u16() {
            200 => edited.fetch_add(1, Relaxed),
            412 => refused.fetch_add(1, Relaxed),
            status => return Err(format!("{status} for an edit of {path}").into()),
        };
    }
    Ok(())
}

// ---- those who post, and the judgement --------------------------------------------------------------------------------------

/// Posts a blog. Returns `false` if the channel is gone, or going.
async fn post(
    store: &dyn Store,
    (channel, blog): (&str, &str),
    plant: Option<Plant>,
    (clock, entropy): (&Clock, &Entropy),
) -> Result<bool> {
    loop {
        let found = store.get(Key::new(channel, CHANNEL)).await?;
        let Some(found) = found.filter(|found| found.value == OPEN) else { return Ok(false) };
        let put = Write::put(blog, "text", Precondition::Absent);
        let writes = match plant {
            Some(Plant::SourceOrder) => vec![put],
            _ => vec![Write::check_row(CHANNEL, Precondition::Version(found.version)), put],
        };
        // A poster thinks for a while; one in ten of those with the mistake for longer than a deletion takes.
        clock.sleep(Duration::from_millis(entropy.up_to(1_000))).await;
        if plant == Some(Plant::SourceOrder) && entropy.up_to(9) == 0 {
            while store.get(Key::new(channel, CHANNEL)).await?.is_some() {
                clock.sleep(Duration::from_millis(20)).await;
            }
        }
        match store.batch(channel, writes).await {
            Ok(_) => return Ok(true),
            // The whole operation again, and not the write alone.
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn start(engine: &Engine) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.envs(engine.variables()).kill_on_drop(true).spawn()?)
}

async fn watch(args: &Args) -> Result<(Value, bool)> {
    let (folder, clock, entropy) = (tempfile::tempdir()?, Clock::tokio(), Entropy::from_seed(args.seed));
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "blogs.db")?;
    let (store, queue) = open(&engine).await?;
    let channels: Vec<String> = (0..args.channels).map(|nth| engine.name(&format!("channel-{nth}"))).collect();
    for channel in &channels {
        let mut writes = vec![Write::put(CHANNEL, OPEN, Precondition::Absent)];
        writes.extend((0..args.blogs).map(|nth| Write::put(format!("blog/old-{nth}"), "text", Precondition::Absent)));
        store.batch(channel, writes).await?;
    }
    // A channel that stays.
    let kept = engine.name("kept");
    let mut writes = vec![Write::put(CHANNEL, OPEN, Precondition::Absent)];
    writes.extend((0..EDITED).map(|nth| Write::put(format!("blog/shared-{nth}"), "0", Precondition::Absent)));
    store.batch(&kept, writes).await?;
    let served = store.clone();
    let server = serve(move |request| {
        let store = served.clone();
        async move { blogs(&*store, request).await.unwrap_or_else(|error| answer(503, error)) }
    })
    .await?;
    say(format!("  {} channels of {} blogs on one {}", args.channels, args.blogs, engine.place()));
    let mut processes = (0..PROCESSES).map(|_| start(&engine)).collect::<Result<Vec<_>>>()?;
    let (posts, ends, mut kills) = (AtomicU64::new(0), AtomicBool::new(false), 0);
    let (edited, refused, http) = (AtomicU64::new(0), AtomicU64::new(0), Http::new());
    let editors = futures::future::try_join_all(
        (0..EDITORS).map(|nth| edits((&http, server, &kept), (args, nth), (&edited, &refused), &ends)),
    );
    let posters = futures::future::try_join_all((0..64u64).map(|poster| {
        let (store, channels, posts, ends, clock) = (&*store, &channels, &posts, &ends, &clock);
        let entropy = Entropy::from_seed(args.seed + 100 + poster);
        async move {
            let mut nth = 0;
            while !ends.load(Relaxed) {
                nth += 1;
                let channel = &channels[entropy.up_to(channels.len() as u64 - 1) as usize];
                let blog = format!("blog/new-{poster}-{nth}");
                let is_posted = post(store, (channel, &blog), args.plant, (clock, &entropy)).await?;
                posts.fetch_add(u64::from(is_posted), Relaxed);
                clock.sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, common::Failure>(())
        }
    }));
    let course = async {
        for channel in &channels {
            queue.send_one(Message::new(channel.clone())).await?;
            clock.sleep(Duration::from_millis(30)).await;
            if kills < args.kills {
                kills += 1;
                let i = entropy.up_to(PROCESSES as u64 - 1) as usize;
                processes[i].kill().await?;
                processes[i] = start(&engine)?;
            }
        }
        let until = clock.now() + Duration::from_secs(180);
        while queue.depth().await?.total() > 0 {
            if clock.now() > until {
                return Err("the channels are not deleted within three minutes".into());
            }
            clock.sleep(Duration::from_millis(100)).await;
        }
        ends.store(true, Relaxed);
        Ok::<_, common::Failure>(())
    };
    tokio::try_join!(posters, editors, course)?;
    drop(processes); // which kills them

    // What is left of channels that are gone.
    let (mut orphans, mut left_blogs) = (0, 0);
    for channel in &channels {
        let rows: BTreeSet<String> =
            store.scan_all(Scan::partition(channel.clone())).await?.into_iter().map(|row| row.row).collect();
        left_blogs += rows.iter().filter(|row| row.starts_with("blog/old-") || *row == CHANNEL).count();
        orphans += rows.iter().filter(|row| row.starts_with("blog/new-")).count();
    }
    let mut counted = 0;
    for nth in 0..EDITED {
        counted +=
            number(&http.get(server, &format!("/{kept}/shared-{nth}")).await?).ok_or("a blog is a number here")?;
    }
    let (posts, edited, refused) = (posts.load(Relaxed), edited.load(Relaxed), refused.load(Relaxed));
    let lost_edits = edited.saturating_sub(counted);
    let summary = json!({ "channels": args.channels, "posts": posts, "orphans": orphans, "left_blogs": left_blogs,
        "edits": edited, "refused": refused, "lost_edits": lost_edits, "kills": kills });
    Ok((summary, (orphans, left_blogs, lost_edits) == (0, 0, 0) && posts > 0 && edited > 0))
}
