//! What the small examples share: a server in a dozen lines, a client, and how they end.
#![allow(dead_code, reason = "no example uses all of it")]
use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    sync::Arc,
};

use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, Response, StatusCode, body::Bytes, body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use serde_json::Value;
use tokio::net::TcpListener;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// An answer with its whole body.
pub(crate) type Answer = Response<Bytes>;

/// Answers requests on loopback by this function, for as long as the process lives.
pub(crate) async fn serve<H, F>(handle: H) -> Result<SocketAddr>
where
    H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, handle) = (listener.local_addr()?, Arc::new(handle));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let handle = handle.clone();
            let service = service_fn(move |request| {
                let answer = handle(request);
                async move { Ok::<_, Infallible>(answer.await.map(Full::new)) }
            });
            // As behind a proxy, it does not hear that its caller has gone.
            let connection = hyper::server::conn::http1::Builder::new()
                .half_close(true)
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    Ok(address)
}

/// An answer of this status.
pub(crate) fn answer(status: u16, body: impl ToString) -> Answer {
    let mut answer = Response::new(Bytes::from(body.to_string()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer
}

/// A client that keeps its connections.
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
        let mut request = Request::get(format!("http://{server}{path}")).body(Full::default())?;
        *request.headers_mut() = headers;
        let (head, body) = self.0.request(request).await?.into_parts();
        Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    }
}

/// The body as a number.
pub(crate) fn number(answer: &Answer) -> Option<u64> {
    std::str::from_utf8(answer.body()).ok()?.trim().parse().ok()
}

/// Ends the process where it was given arguments, of which there are none but `--help`.
pub(crate) fn no_arguments(about: &'static str) {
    clap::Command::new(env!("CARGO_CRATE_NAME")).about(about).get_matches();
}

pub(crate) fn say(line: impl AsRef<str>) {
    // Who closes the pipe does not want to read more.
    let _ = writeln!(io::stdout().lock(), "{}", line.as_ref());
}

/// The last line, and how the process ends: well where all that was promised holds.
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
