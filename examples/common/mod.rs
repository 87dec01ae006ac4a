//! Shared parts of the small examples: a server in a dozen lines, a client, and the exit code.
#![allow(dead_code, reason = "no example uses all of it")]
use std::{
    convert::Infallible,
    error::Error,
    future::{Future, ready},
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, Response, StatusCode, body::Bytes, body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use steadfast::{metrics::Metrics, time::Clock};
use tokio::net::TcpListener;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// A response with its complete body.
pub(crate) type Answer = Response<Bytes>;

/// Serves requests on a free port of loopback with this function until the process ends.
pub(crate) async fn serve<H, F>(handle: H) -> Result<SocketAddr>
where
    H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    serve_at(0, handle).await
}

/// Serves the metrics of this process on a port of loopback until it ends.
pub(crate) async fn serve_metrics(port: u16) -> Result<Metrics> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let metrics = Metrics::on(recorder);
    let watched = metrics.clone();
    serve_at(port, move |_| ready(answer(200, watched.scrape(|| page.render())))).await?;
    Ok(metrics)
}

async fn serve_at<H, F>(port: u16, handle: H) -> Result<SocketAddr>
where
    H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let (address, handle) = (listener.local_addr()?, Arc::new(handle));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let handle = handle.clone();
            let service = service_fn(move |request| {
                let answer = handle(request);
                async move { Ok::<_, Infallible>(answer.await.map(Full::new)) }
            });
            // As behind a proxy, the server does not notice that its caller has disconnected.
            let connection = hyper::server::conn::http1::Builder::new()
                .half_close(true)
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    Ok(address)
}

/// Returns a response with this status.
pub(crate) fn answer(status: u16, body: impl ToString) -> Answer {
    let mut answer = Response::new(Bytes::from(body.to_string()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer
}

/// Returns a client with a connection pool.
#[derive(Clone)]
pub(crate) struct Http(Client<HttpConnector, Full<Bytes>>);

impl Http {
    pub(crate) fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build(HttpConnector::new()))
    }

    pub(crate) async fn get(&self, server: SocketAddr, path: &str) -> Result<Answer> {
        self.get_with(server, path, HeaderMap::new()).await
    }

    pub(crate) async fn get_with(&self, server: SocketAddr, path: &str, headers: HeaderMap) -> Result<Answer> {
        self.send(Request::get(format!("http://{server}{path}")), headers).await
    }

    pub(crate) async fn post_with(&self, server: SocketAddr, path: &str, headers: HeaderMap) -> Result<Answer> {
        self.send(Request::post(format!("http://{server}{path}")), headers).await
    }

    async fn send(&self, request: hyper::http::request::Builder, headers: HeaderMap) -> Result<Answer> {
        let mut request = request.body(Full::default())?;
        *request.headers_mut() = headers;
        let (head, body) = self.0.request(request).await?.into_parts();
        Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    }
}

/// Returns the body as a number.
pub(crate) fn number(answer: &Answer) -> Option<u64> {
    std::str::from_utf8(answer.body()).ok()?.trim().parse().ok()
}

/// Ends the process if it has arguments; `--help` is the only one.
pub(crate) fn no_arguments(about: &'static str) {
    clap::Command::new(env!("CARGO_CRATE_NAME")).about(about).get_matches();
}

/// Repeats a request until it succeeds, for a minute: without its leader a cluster refuses requests for seconds.
pub(crate) async fn patiently<T, E: Into<Failure>>(
    mut request: impl AsyncFnMut() -> std::result::Result<T, E>,
) -> Result<T> {
    let clock = Clock::tokio();
    let until = clock.now() + Duration::from_secs(60);
    loop {
        match request().await {
            Err(_) if clock.now() < until => clock.sleep(Duration::from_millis(100)).await,
            done => return done.map_err(Into::into),
        }
    }
}

pub(crate) fn say(line: impl AsRef<str>) {
    // A closed pipe is not an error.
    let _ = writeln!(io::stdout().lock(), "{}", line.as_ref());
}

/// Prints the last line, and returns the exit code: success if all promises hold.
pub(crate) fn end(shown: Result<(Value, bool)>) -> ExitCode {
    match shown {
        Ok((summary, holds)) => {
            say(format!("\nsummary: {summary}"));
            if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "failed: {error}");
            ExitCode::FAILURE
        }
    }
}
