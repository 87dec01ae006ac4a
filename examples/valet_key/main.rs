//! Valet keys over HTTP on loopback: two servers for files, and holders who use keys twice, use them after their revocation, and
//! send more bytes than they may. Then uploads to a bucket, by a process that is killed at each step of a completion, for clients
//! that lie and never report. The last line is the result as JSON.
#![allow(missing_docs, clippy::expect_used, reason = "a program has no readers from outside")]
mod bucket;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/engine.rs"]
mod engine;
mod uploads;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
    routing::any,
};
use clap::Parser;
use common::{Result, end, say};
use engine::{Engine, EngineAt};
use futures::StreamExt;
use serde_json::{Value, json};
use steadfast::{
    store::Store,
    token::{Key, KeyRing},
    valet_key::{Grant, HEADERS, LimitedError, Operation, ValetKey, ValetKeyConfig, ValetKeys},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Serves files to holders of keys, who try to do more than these allow.
#[derive(Parser)]
struct Args {
    /// Number of requests at once with one key for a single use.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    requests: u32,
    /// Place of the uses and revocations: `sqlite:FILE`, the URL of a server, or `postgres`, `redis` or `nats` for a server
    /// of this run. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Part that this process plays, its folder, its port and the address of the bucket.
    #[arg(long, hide = true, requires = "folder")]
    role: Option<String>,
    #[arg(long, hide = true)]
    folder: Option<PathBuf>,
    #[arg(long, hide = true)]
    ports: Vec<u16>,
    #[arg(long, hide = true)]
    bucket: Option<String>,
}

const LIMIT: usize = 10_000;

/// What was stored, by path.
type Files = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match (args.role.as_deref(), Engine::of_parent()) {
        (Some("worker"), Some(engine)) => match uploads::work(&args, &engine).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say(format!("  worker: {error}"));
                ExitCode::FAILURE
            }
        },
        _ => end(show(&args).await),
    }
}

/// A server for files, with keys that it shares with the other one through the store alone.
async fn serve(ring: &KeyRing, store: Arc<dyn Store>, files: &Files) -> Result<(ValetKeys, SocketAddr)> {
    let keys = ValetKeys::builder("files", ring.clone(), ValetKeyConfig::default()).revocable(store).build()?;
    let app = Router::new().route("/{*path}", any(handle)).with_state((keys.clone(), files.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok((keys, address))
}

async fn handle(State((keys, files)): State<(ValetKeys, Files)>, request: Request) -> Response {
    let mut answer = answer(&keys, &files, request).await.into_response();
    for (name, value) in HEADERS {
        answer.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    answer
}

async fn answer(keys: &ValetKeys, files: &Files, request: Request) -> (StatusCode, Vec<u8>) {
    let refuse = |status: StatusCode| (status, Vec::new());
    let Some(operation) = Operation::of_method(request.method().as_str()) else {
        return refuse(StatusCode::METHOD_NOT_ALLOWED);
    };
    let key = request.headers().get("x-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
    let pass = match keys.check(operation, request.uri().path(), key).await {
        Ok(pass) => pass,
        Err(refused) => return refuse(StatusCode::from_u16(refused.status()).unwrap_or(StatusCode::FORBIDDEN)),
    };
    let (path, body): (_, Body) = (pass.path().to_owned(), request.into_body());
    match operation {
        Operation::Put => {
            let (mut file, mut body) = (Vec::new(), std::pin::pin!(pass.limit(body.into_data_stream())));
            while let Some(chunk) = body.next().await {
                match chunk {
                    Ok(chunk) => file.extend_from_slice(&chunk),
                    Err(LimitedError::TooLarge) => return refuse(StatusCode::PAYLOAD_TOO_LARGE),
                    Err(_) => return refuse(StatusCode::BAD_REQUEST),
                }
            }
            files.lock().expect("no panic").insert(path, file);
            refuse(StatusCode::CREATED)
        }
        Operation::Get => match files.lock().expect("no panic").get(&path) {
            Some(file) => (StatusCode::OK, file.clone()),
            None => refuse(StatusCode::NOT_FOUND),
        },
        _ => refuse(StatusCode::METHOD_NOT_ALLOWED),
    }
}

/// Sends a request as bytes, so that its length may be a lie, and returns the status and whether the answer may be cached.
async fn send(server: SocketAddr, line: &str, key: &ValetKey, declared: &str, body: &[u8]) -> Result<(u16, bool)> {
    let head =
        format!("{line} HTTP/1.1\r\nhost: files\r\nconnection: close\r\nx-key: {}\r\n{declared}\r\n", key.as_str());
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(head.as_bytes()).await?;
    // The server may answer before it has read everything.
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status")?;
    Ok((status, !answer.contains("cache-control: no-store")))
}

fn chunked(bytes: usize) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for at in (0..bytes).step_by(1000) {
        let size = (bytes - at).min(1000);
        body.extend_from_slice(format!("{size:x}\r\n{}\r\n", "x".repeat(size)).as_bytes());
    }
    body.extend_from_slice(b"0\r\n\r\n");
    ("transfer-encoding: chunked\r\n".to_owned(), body)
}

fn plain(bytes: usize) -> (String, Vec<u8>) {
    (format!("content-length: {bytes}\r\n"), vec![b'x'; bytes])
}

async fn show(args: &Args) -> Result<(Value, bool)> {
    let folder = tempfile::tempdir()?;
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "keys.db")?;
    let (mut summary, holds) = show_keys(args, &engine).await?;
    let found = uploads::show(&engine, folder.path()).await?;
    let uploads::Counts { uploads, accepted, half_accepted, oversized, kills, wrong } = found;
    let of_uploads =
        json!({ "uploads": uploads, "accepted": accepted, "half_accepted": half_accepted, "kills": kills });
    for (name, count) in of_uploads.as_object().into_iter().flatten() {
        summary[name] = count.clone();
    }
    for (name, more) in [("oversized", oversized), ("wrong", wrong)] {
        summary[name] = json!(summary[name].as_u64().unwrap_or(1) + u64::from(more));
    }
    // A completion is killed at each of the 8 steps of an honest upload, the 4 of a larger one, the 10 of one with a wrong digest,
    // and the 2 of one that is not there.
    let is_shown = accepted == 11 + 5 && kills == 8 + 4 + 10 + 2;
    Ok((summary, holds && is_shown && (half_accepted, oversized, wrong) == (0, 0, 0)))
}

async fn show_keys(args: &Args, engine: &Engine) -> Result<(Value, bool)> {
    let (ring, files) = (KeyRing::new([Key::generate("2027-01")?])?, Files::default());
    let (issuer, one) = serve(&ring, engine.open().await?.store(), &files).await?;
    let (other_keys, other) = serve(&ring, engine.open().await?.store(), &files).await?;
    say(format!("  two servers for files, with one {}", engine.place()));
    let (mut keys, mut passed, mut cached) = (0, 0, 0);
    let mut issue = |grant: Grant| {
        keys += 1;
        issuer.issue(grant)
    };

    // One use, by many at once at both servers.
    let once = issue(Grant::put("t7/in/").max_bytes(100).single_use())?;
    let (declared, body) = plain(10);
    let calls = (0..args.requests).map(|n| {
        let (line, server) = (format!("PUT /t7/in/{n}"), if n % 2 == 0 { one } else { other });
        let (once, declared, body) = (&once, &declared, &body);
        async move { send(server, &line, once, declared, body).await }
    });
    // As many as the system has connections for.
    let all: Vec<_> = futures::stream::iter(calls).buffer_unordered(200).collect().await;
    let mut uses = 0;
    for answer in all {
        let (status, may_be_cached) = answer?;
        uses += u32::from(status == 201);
        cached += u32::from(may_be_cached);
    }
    passed += uses;
    let second_uses = uses.saturating_sub(1);
    say(format!("  {} requests with a key for one use: {uses} let in", args.requests));

    // Bodies up to the limit, and beyond it, with the length declared and without.
    let mut wrong = u32::from(uses != 1);
    let put = issue(Grant::put("t7/up/").max_bytes(LIMIT as u64).tag("ada"))?;
    for (n, bytes) in [0, 1, LIMIT - 1, LIMIT, LIMIT + 1, 2 * LIMIT, 50 * LIMIT].into_iter().enumerate() {
        for (kind, (declared, body)) in [("plain", plain(bytes)), ("chunked", chunked(bytes))] {
            let (status, may_be_cached) = send(one, &format!("PUT /t7/up/{kind}{n}"), &put, &declared, &body).await?;
            passed += u32::from(status == 201);
            wrong += u32::from(status != if bytes > LIMIT { 413 } else { 201 });
            cached += u32::from(may_be_cached);
        }
    }
    let oversized = files.lock().expect("no panic").values().filter(|file| file.len() > LIMIT).count();

    // Other operations and paths, and then a revocation at the other server.
    let get = issue(Grant::get("t7/up/plain1").tag("ada"))?;
    let mut revoked_accepted = 0;
    for (line, key, expected) in [
        ("GET /t7/up/plain1", &get, 200),
        ("GET /t7/up/plain2", &get, 403),
        ("GET /t7/up/plain1", &put, 403),
        ("PUT /t7/upper/a", &put, 403),
        ("PUT /t7/up/../in/a", &put, 403),
        ("PUT /t7/up/%2e%2e/in/a", &put, 403),
        ("DELETE /t7/up/plain1", &put, 403),
        ("POST /t7/up/plain1", &put, 405),
    ] {
        let (status, _) = send(one, line, key, "", b"").await?;
        passed += u32::from(status == 200);
        wrong += u32::from(status != expected);
    }
    other_keys.revoke_tag("ada").await?;
    for server in [one, other] {
        for (line, key) in [("GET /t7/up/plain1", &get), ("PUT /t7/up/late", &put)] {
            let (status, _) = send(server, line, key, "content-length: 0\r\n", b"").await?;
            revoked_accepted += u32::from(status != 403);
        }
    }
    say(format!("  revoked by their tag: {revoked_accepted} of 4 let in"));
    let holds = (second_uses, oversized, revoked_accepted, wrong, cached) == (0, 0, 0, 0, 0);
    let summary = json!({ "keys": keys, "passed": passed, "second_uses": second_uses, "oversized": oversized,
        "revoked_accepted": revoked_accepted, "wrong": wrong, "may_be_cached": cached });
    Ok((summary, holds))
}
