//! reqwest's responses and errors, from a real client and real servers on loopback.
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http_body_util::Full;
use hyper::{Request, Response, body::Bytes, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use reqwest::{Client, redirect};
use steadfast::{
    BoxedPipeline, Classify, FailureKind, Hint, Pipeline, Verdict,
    call::{AttemptInfo, not_idempotent, with_state},
    http::{ByStatus, kind_by_source, reqwest_error},
    outcome::StopReason,
    retry::{Retry, RetryConfig},
    standard::{Standard, StandardConfig},
    time::Clock,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn client() -> Client {
    Client::builder().no_proxy().redirect(redirect::Policy::limited(2)).build().unwrap()
}

/// Starts an HTTP server with these responses in turn, the last one repeated; counts its requests.
async fn server(answers: Vec<Response<Full<Bytes>>>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let (answers, counted) = (Arc::new(answers), count.clone());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (answers, counted) = (answers.clone(), counted.clone());
            let service = service_fn(move |_: Request<Incoming>| {
                let n = counted.fetch_add(1, SeqCst).min(answers.len() - 1);
                std::future::ready(Ok::<_, Infallible>(answers[n].clone()))
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, count)
}

/// Starts a server that reads a request and writes these bytes; with `hangs_up` it then closes the connection.
async fn raw(answer: &'static [u8], hangs_up: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer).await;
                if !hangs_up {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    address
}

fn answer(status: u16, fields: &[(&'static str, String)]) -> Response<Full<Bytes>> {
    let answer = fields.iter().fold(Response::builder().status(status), |a, (name, value)| a.header(*name, value));
    answer.body(Full::default()).unwrap()
}

#[test]
fn a_response_is_judged_by_its_status_and_its_hint_is_read() {
    runtime().block_on(async {
        let (address, _) = server(vec![answer(429, &[("retry-after", "3".into())]), answer(200, &[])]).await;
        let get = || client().get(format!("http://{address}")).send();
        let verdict = ByStatus::new().classify(&get().await);
        assert_eq!(
            (verdict.kind(), verdict.hint()),
            (Some(FailureKind::Throttled), Hint::RetryAfter(Duration::from_secs(3)))
        );
        assert!(ByStatus::new().classify(&get().await).is_success());
    });
}

// Guarantee: retry 6.
#[test]
fn a_call_without_a_connection_was_not_sent_and_is_repeated() {
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let config = RetryConfig::default().idempotent(true).max_attempts(2);
        let retry = Retry::builder(config).delays(|| std::iter::repeat(Duration::ZERO)).build().unwrap();
        let pipeline = Pipeline::new().then(retry).classify(ByStatus::new().without_redirects());
        let client = Client::builder().no_proxy().redirect(redirect::Policy::none()).build().unwrap();
        let post = not_idempotent(|| client.post(format!("http://{address}")).body("once").send());
        let error = pipeline.call(post).await.unwrap_err();
        assert_eq!((error.verdict().kind(), error.attempts()), (Some(FailureKind::Connect), 2));
    });
}

// Guarantee: retry 6.
#[test]
fn a_post_that_was_redirected_to_a_closed_port_is_sent_once() {
    runtime().block_on(async {
        for status in [302, 303, 307, 308] {
            let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let location = format!("http://{}/", closed.local_addr().unwrap());
            drop(closed);
            let (address, count) = server(vec![answer(status, &[("location", location)])]).await;
            let pipeline = || {
                Pipeline::new().then(
                    Retry::builder(RetryConfig::default())
                        .delays(|| std::iter::repeat(Duration::ZERO))
                        .build()
                        .unwrap(),
                )
            };
            let client = client();
            let post = || client.post(format!("http://{address}")).body("once").send();
            let error = pipeline().classify(ByStatus::new()).call(not_idempotent(post)).await.unwrap_err();
            assert_eq!((error.attempts(), count.load(SeqCst)), (1, 1), "{status}: {error}");
            pipeline().classify(ByStatus::new()).call(post).await.unwrap_err();
            assert_eq!(count.load(SeqCst), 2, "{status}, unmarked");
            // The same by the errors that another error wraps.
            let wrapped = async || post().await.map_err(std::io::Error::other);
            let judge = |result: &Result<reqwest::Response, std::io::Error>| {
                result.as_ref().map_or_else(|e| Verdict::failure(kind_by_source(e)), |_| Verdict::success())
            };
            pipeline().classify(judge).call(not_idempotent(wrapped)).await.unwrap_err();
            assert_eq!(count.load(SeqCst), 3, "{status}, wrapped");
            // And by other methods.
            let boxed: BoxedPipeline<_, _> = pipeline().classify(ByStatus::new()).boxed();
            boxed.call(not_idempotent(post)).await.unwrap_err();
            assert_eq!(count.load(SeqCst), 4, "{status}, boxed");
            let standard =
                || Standard::new(StandardConfig::default()).unwrap().into_pipeline().classify(ByStatus::new());
            standard().call(not_idempotent(post)).await.unwrap_err();
            assert_eq!(count.load(SeqCst), 5, "{status}, standard");
            let within = AttemptInfo::with_deadline(Clock::tokio().now() + Duration::from_secs(60));
            standard().call_within(within, not_idempotent(post)).await.unwrap_err();
            assert_eq!(count.load(SeqCst), 6, "{status}, within");
            let mut sends = 0;
            let counted = with_state(&mut sends, async |sends| {
                *sends += 1;
                post().await
            });
            standard().call(not_idempotent(counted)).await.unwrap_err();
            assert_eq!((sends, count.load(SeqCst)), (1, 7), "{status}, with a state");
        }
    });
}

// Guarantee: retry 6.
#[test]
fn a_call_that_was_sent_is_repeated_only_if_idempotent() {
    runtime().block_on(async {
        for (address, kind) in [
            (raw(b"", false).await, FailureKind::Timeout), // it never answers
            (raw(b"", true).await, FailureKind::Other),    // it hangs up
        ] {
            let retry = Retry::builder(RetryConfig::default().idempotent(true))
                .delays(|| std::iter::repeat(Duration::ZERO))
                .build()
                .unwrap();
            let pipeline = Pipeline::new().then(retry).classify(ByStatus::new());
            let client = client();
            let send = || client.post(format!("http://{address}")).timeout(Duration::from_millis(200)).send();
            let error = pipeline.call(not_idempotent(send)).await.unwrap_err();
            assert_eq!((error.verdict().kind(), error.attempts()), (Some(kind), 1), "{error}");
            assert_eq!(error.history().unwrap().stop, StopReason::NotIdempotent);
            assert_eq!(pipeline.call(send).await.unwrap_err().attempts(), 3);
        }
    });
}

#[test]
fn a_request_that_cannot_be_built_is_the_caller_s_fault() {
    runtime().block_on(async {
        let error = client().get("no address").send().await.unwrap_err();
        assert_eq!(reqwest_error(&error).kind(), Some(FailureKind::Client));
    });
}

#[test]
fn too_many_redirects_are_a_client_failure() {
    runtime().block_on(async {
        let (address, count) = server(vec![answer(302, &[("location", "/again".into())])]).await;
        let error = client().get(format!("http://{address}")).send().await.unwrap_err();
        assert_eq!((reqwest_error(&error).kind(), count.load(SeqCst)), (Some(FailureKind::Client), 3));
    });
}

#[test]
fn a_status_turned_into_an_error_is_judged_as_the_status() {
    runtime().block_on(async {
        let (address, _) = server(vec![answer(503, &[("retry-after", "3".into())]), answer(404, &[])]).await;
        let get = || async { client().get(format!("http://{address}")).send().await?.error_for_status() };
        assert_eq!(reqwest_error(&get().await.unwrap_err()).kind(), Some(FailureKind::Overloaded));
        assert_eq!(reqwest_error(&get().await.unwrap_err()).kind(), Some(FailureKind::Client));
    });
}

#[test]
fn a_body_that_ends_early_is_a_failure_of_the_server() {
    runtime().block_on(async {
        let address = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", true).await;
        let client = client();
        let read = || async { client.get(format!("http://{address}")).send().await?.bytes().await };
        assert_eq!(reqwest_error(&read().await.unwrap_err()).kind(), Some(FailureKind::Server));
        // A body that hangs is a time-out.
        let address = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", false).await;
        let get = || client.get(format!("http://{address}")).timeout(Duration::from_millis(200)).send();
        let error = get().await.unwrap().bytes().await.unwrap_err();
        assert_eq!(reqwest_error(&error).kind(), Some(FailureKind::Timeout));
        // A response that is not HTTP: whether the server understood the request is unknown.
        let address = raw(b"SSH-2.0-x\r\n", true).await;
        let error = client.get(format!("http://{address}")).send().await.unwrap_err();
        assert_eq!(reqwest_error(&error).kind(), Some(FailureKind::Other));
    });
}

#[test]
fn a_busy_response_is_the_client_s_error_by_its_own_method() {
    runtime().block_on(async {
        let busy = answer(503, &[("retry-after", "7".into())]);
        let (address, _) = server(vec![busy, answer(200, &[])]).await;
        let calls = Pipeline::new().classify(ByStatus::new()).error_for_value(reqwest::Response::error_for_status);
        let calls = calls.boxed();
        let (client, url) = (client(), format!("http://{address}/"));
        let error = calls.call(|| client.get(&url).send()).await.unwrap_err();
        assert_eq!(
            (error.verdict().kind(), error.retry_after()),
            (Some(FailureKind::Overloaded), Some(Duration::from_secs(7)))
        );
        assert_eq!(error.into_operation().unwrap().status().unwrap().as_u16(), 503);
        assert_eq!(calls.call(|| client.get(&url).send()).await.unwrap().status(), 200);
    });
}
