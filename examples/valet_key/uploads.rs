//! Uploads whose completions are killed at each step, by clients of which some lie, and some never report.
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    extract::{self, RawQuery, State},
    http::StatusCode,
    routing::post,
};
use serde::{Deserialize, Serialize};
use steadfast::{
    store::Store,
    time::Clock,
    token::{Key, KeyRing},
    valet_key::{Declared, UploadConfig, UploadError, Uploads},
};
use tokio::{
    net::TcpListener,
    process::{Child, Command},
};

use crate::{
    Args,
    bucket::Bucket,
    common::{Result, say},
    engine::Engine,
};

const MAX: u64 = 10_000;
const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(10);

/// The key of the bucket's URLs, which is no secret here.
fn ring() -> Result<KeyRing> {
    Ok(KeyRing::new([Key::secret("bucket", &[7; 32])?])?)
}

// ---- the process that begins and completes uploads ------------------------------------------------------------------------------

#[derive(Clone)]
struct Worker {
    bucket: Bucket,
    /// Uploads that clients report, and others that nobody reports.
    scans: Uploads,
    silent: Uploads,
}

#[derive(Serialize, Deserialize)]
struct Promise {
    bytes: u64,
    sha256: Option<[u8; 32]>,
}

#[derive(Serialize, Deserialize)]
struct Begun {
    id: String,
    url: String,
    headers: Vec<(String, String)>,
}

pub(crate) async fn work(args: &Args, engine: &Engine) -> Result<()> {
    let (Some(folder), [port], Some(address)) = (&args.folder, &args.ports[..], &args.bucket) else {
        return Err("no folder, port or bucket".into());
    };
    let bucket = Bucket::new(folder, ring()?, address)?;
    let store: Arc<dyn Store> = engine.open().await?.store();
    let (objects, config) = (Arc::new(bucket.clone()), UploadConfig::default().max_bytes(MAX));
    let scans = Uploads::new(objects.clone(), store.clone(), engine.name("scans"), config)?;
    let second = Duration::from_secs(1);
    // Long enough for a client on a busy machine, and for each request to the bucket.
    let soon = config.url_lifetime(second * 6).grace(second * 4).call_timeout(second * 2);
    let soon = soon.sweep_interval(Duration::from_millis(200));
    let silent = Uploads::new(objects, store, engine.name("silent"), soon)?;
    let sweeps = (scans.clone(), silent.clone());
    tokio::spawn(async move {
        tokio::join!(sweeps.0.run(std::future::pending()), sweeps.1.run(std::future::pending()));
    });
    let app = Router::new()
        .route("/begin/{kind}", post(begin))
        .route("/complete/{id}", post(complete))
        .with_state(Worker { bucket, scans, silent });
    Ok(axum::serve(TcpListener::bind(("127.0.0.1", *port)).await?, app).await?)
}

fn status(error: &UploadError) -> StatusCode {
    StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

async fn begin(
    State(worker): State<Worker>,
    extract::Path(kind): extract::Path<String>,
    body: String,
) -> (StatusCode, String) {
    let Ok(Promise { bytes, sha256 }) = serde_json::from_str(&body) else {
        return (StatusCode::BAD_REQUEST, String::new());
    };
    let mut declared = Declared::new("text/plain", bytes);
    if let Some(digest) = sha256 {
        declared = declared.sha256(digest);
    }
    let uploads = if kind == "silent" { &worker.silent } else { &worker.scans };
    match uploads.begin("t7", declared).await {
        Ok(ticket) => {
            let headers = ticket.headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            let begun = serde_json::to_string(&Begun { id: ticket.id, url: ticket.url, headers });
            (StatusCode::OK, begun.unwrap_or_default())
        }
        Err(error) => (status(&error), error.to_string()),
    }
}

/// Completes an upload; before that, the bucket may be told to stop this process at one of its steps.
async fn complete(
    State(worker): State<Worker>,
    extract::Path(id): extract::Path<String>,
    RawQuery(stop): RawQuery,
) -> (StatusCode, String) {
    if let Some(step) = stop.and_then(|stop| stop.strip_prefix("stop=")?.parse().ok()) {
        worker.bucket.stop_after(step);
    }
    let completed = worker.scans.complete(&id).await;
    worker.bucket.stop_after(i64::MAX);
    match completed {
        Ok(accepted) => (StatusCode::OK, accepted.path),
        Err(error) => (status(&error), error.to_string()),
    }
}

// ---- the control, and the clients -----------------------------------------------------------------------------------------------

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) uploads: u32,
    pub(crate) accepted: u32,
    pub(crate) half_accepted: u32,
    pub(crate) oversized: u32,
    pub(crate) kills: u32,
    pub(crate) wrong: u32,
}

/// A client, by what it does with its URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Honest,
    /// It writes more bytes than it declared.
    Larger,
    /// It declares the digest of something else.
    Other,
    /// It writes nothing.
    Idle,
}

struct Control<'a> {
    engine: &'a Engine,
    folder: PathBuf,
    port: u16,
    bucket: String,
    worker: Mutex<Child>,
    client: reqwest::Client,
    clock: Clock,
    counts: Counts,
}

fn start(engine: &Engine, folder: &Path, port: u16, bucket: &str) -> Result<Child> {
    Ok(Command::new(std::env::current_exe()?)
        .args(["--role", "worker", "--bucket", bucket, "--ports", &port.to_string(), "--folder"])
        .arg(folder)
        .envs(engine.variables())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()?)
}

impl Control<'_> {
    /// Sends a request to the worker until it answers.
    async fn post(&self, path: &str, body: String) -> Result<(u16, String)> {
        let until = self.clock.now() + PATIENCE;
        while self.clock.now() < until {
            let request = self.client.post(format!("http://127.0.0.1:{}/{path}", self.port)).body(body.clone());
            match request.send().await {
                Ok(answer) if answer.status() != 503 => {
                    return Ok((answer.status().as_u16(), answer.text().await?));
                }
                _ => self.clock.sleep(PAUSE).await,
            }
            if let Some(status) = self.worker.lock().expect("no panic").try_wait()? {
                return Err(format!("the worker has ended by itself: {status}").into());
            }
        }
        Err(format!("no answer to {path}").into())
    }

    async fn begin(&mut self, kind: &str, promise: &Promise) -> Result<Begun> {
        self.counts.uploads += 1;
        let (status, text) = self.post(&format!("begin/{kind}"), serde_json::to_string(promise)?).await?;
        if status == 200 { Ok(serde_json::from_str(&text)?) } else { Err(text.into()) }
    }

    /// Writes with the URL, and returns the status.
    async fn write(&self, begun: &Begun, body: Vec<u8>) -> Result<u16> {
        let mut request = self.client.put(&begun.url).body(body);
        for (name, value) in &begun.headers {
            request = request.header(name, value);
        }
        Ok(request.send().await?.status().as_u16())
    }

    /// Completes an upload in a process that is killed at this step, if it comes there.
    async fn complete_and_kill(&mut self, id: &str, step: i64) -> Result<()> {
        let (stopped, path) = (self.folder.join("stopped"), format!("complete/{id}?stop={step}"));
        let stops = async {
            while !stopped.exists() {
                self.clock.sleep(PAUSE).await;
            }
        };
        tokio::select! {
            _ = self.post(&path, String::new()) => return Ok(()),
            () = stops => {}
        }
        let worker = self.worker.get_mut().expect("no panic");
        worker.kill().await?;
        std::fs::remove_file(&stopped)?;
        *worker = start(self.engine, &self.folder, self.port, &self.bucket)?;
        self.counts.kills += 1;
        Ok(())
    }

    /// Runs one client, whose completion is killed at this step. Returns the accepted path, if there is one.
    async fn run(&mut self, kind: Kind, step: i64) -> Result<Option<(String, Vec<u8>)>> {
        let body = format!("{kind:?} {step} ").repeat(50).into_bytes();
        let promised = if kind == Kind::Larger { body.len() / 2 } else { body.len() } as u64;
        let sha256 = (kind == Kind::Other).then_some([7; 32]);
        let begun = self.begin("scans", &Promise { bytes: promised, sha256 }).await?;
        if kind != Kind::Idle {
            let status = self.write(&begun, body.clone()).await?;
            // The same URL writes once, and with its headers alone.
            let again = self.write(&begun, body.clone()).await?;
            let without = Begun { id: String::new(), url: begun.url.clone(), headers: Vec::new() };
            let bare = self.write(&without, body.clone()).await?;
            self.counts.wrong += u32::from((status, again, bare) != (200, 412, 403));
        }
        self.complete_and_kill(&begun.id, step).await?;
        let path = format!("complete/{}", begun.id);
        // Two at once, and then another one.
        let (one, two) = tokio::try_join!(self.post(&path, String::new()), self.post(&path, String::new()))?;
        let three = self.post(&path, String::new()).await?;
        let expected = match kind {
            Kind::Honest => 200,
            Kind::Larger | Kind::Other => 422,
            Kind::Idle => 409,
        };
        let is_right = one.0 == expected && one == two && two == three;
        if !is_right {
            say(format!("  {kind:?} at step {step}: {one:?} {two:?} {three:?}"));
        }
        self.counts.wrong += u32::from(!is_right);
        Ok((one.0 == 200).then_some((one.1, body)))
    }

    /// Returns the files of the bucket below a folder, by their paths.
    fn files(&self, below: &str) -> BTreeMap<String, Vec<u8>> {
        let folder = self.folder.join("bucket").join(below);
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let name = |file: &std::fs::DirEntry| format!("{below}/{}", file.file_name().to_string_lossy());
        files.map(|file| (name(&file), std::fs::read(file.path()).unwrap_or_default())).collect()
    }

    /// Compares the accepted objects with what the worker said and the clients wrote.
    fn judge(&mut self, name: &str, accepted: &BTreeMap<String, Vec<u8>>) {
        let files = self.files(&format!("copies/{name}"));
        let left = self.files(&format!("incoming/{name}")).len();
        let counts = &mut self.counts;
        counts.accepted += u32::try_from(accepted.len()).unwrap_or_default();
        counts.half_accepted += files.iter().filter(|(path, body)| accepted.get(*path) != Some(*body)).count() as u32;
        counts.half_accepted += accepted.keys().filter(|path| !files.contains_key(*path)).count() as u32;
        counts.oversized += files.values().filter(|body| body.len() as u64 > MAX).count() as u32;
        counts.wrong += u32::try_from(left).unwrap_or_default();
    }

    /// Uploads that nobody reports are accepted by a sweep, and those without an object end.
    async fn silent(&mut self) -> Result<()> {
        let mut written = Vec::new();
        for at in 0..5 {
            let body = format!("silent {at} ").repeat(50).into_bytes();
            let begun = self.begin("silent", &Promise { bytes: body.len() as u64, sha256: None }).await?;
            self.counts.wrong += u32::from(self.write(&begun, body.clone()).await? != 200);
            written.push(body);
            self.begin("silent", &Promise { bytes: 1, sha256: None }).await?;
        }
        let (name, until) = (self.engine.name("silent"), self.clock.now() + PATIENCE);
        let (accepted, incoming) = (format!("copies/{name}"), format!("incoming/{name}"));
        while self.files(&accepted).len() < 5 || !self.files(&incoming).is_empty() {
            if self.clock.now() > until {
                return Err("no sweep has ended the silent uploads".into());
            }
            self.clock.sleep(PAUSE).await;
        }
        let found = self.files(&accepted);
        self.counts.wrong += written.iter().filter(|body| !found.values().any(|found| found == *body)).count() as u32;
        self.judge(&name, &found);
        Ok(())
    }
}

pub(crate) async fn show(engine: &Engine, folder: &Path) -> Result<Counts> {
    std::fs::create_dir_all(folder.join("bucket"))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let bucket = Bucket::new(folder, ring()?, &address)?;
    tokio::spawn(async move { axum::serve(listener, bucket.server()).await });
    let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
    let worker = Mutex::new(start(engine, folder, port, &address)?);
    let (folder, client) = (folder.to_owned(), reqwest::Client::new());
    let (clock, counts) = (Clock::tokio(), Counts::default());
    let mut control = Control { engine, folder, port, bucket: address, worker, client, clock, counts };
    let mut accepted = BTreeMap::new();
    // Each request to the bucket is two steps: a completion has 4 of them, with a rejected copy 5.
    for step in 0..=10 {
        for kind in [Kind::Honest, Kind::Larger, Kind::Other, Kind::Idle] {
            accepted.extend(control.run(kind, step).await?);
        }
    }
    control.counts.wrong += u32::from(accepted.len() != 11);
    say(format!("  {} completions killed at each of their steps: {} accepted", control.counts.kills, accepted.len()));
    control.judge(&engine.name("scans"), &accepted);
    control.silent().await?;
    control.worker.get_mut().expect("no panic").kill().await?;
    Ok(control.counts)
}
