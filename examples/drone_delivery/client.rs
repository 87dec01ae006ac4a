//! The HTTP client, its errors, and their classifier.
use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode, body::Bytes, header};
use hyper_util::{
    client::legacy::{Client as Pooled, connect::HttpConnector},
    rt::TokioExecutor,
};
use steadfast::{FailureKind, Verdict};

/// A pooled client; clones share the pool.
#[derive(Clone)]
pub struct Client(Pooled<HttpConnector, Full<Bytes>>);

/// The error of a call without a usable response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("not connected: {0}")]
    Connect(String),
    #[error("connection lost: {0}")]
    Lost(String),
    #[error("HTTP {status}")]
    Status { status: StatusCode, retry_after: Option<Duration> },
}

impl Client {
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let mut pooled = Pooled::builder(TokioExecutor::new());
        // The pipeline alone retries calls and counts attempts.
        pooled.pool_max_idle_per_host(4096).retry_canceled_requests(false);
        Self(pooled.build(connector))
    }

    /// Makes one call. A business refusal (403) is a response, not an error.
    pub async fn call(
        &self,
        method: &Method,
        address: SocketAddr,
        path: &str,
        key: Option<&str>,
        body: &Bytes,
    ) -> Result<StatusCode, HttpError> {
        let mut request = Request::builder().method(method).uri(format!("http://{address}{path}"));
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body.clone())).map_err(|e| HttpError::Lost(e.to_string()))?;
        let response = self
            .0
            .request(request)
            .await
            .map_err(|e| if e.is_connect() { HttpError::Connect(root(&e)) } else { HttpError::Lost(root(&e)) })?;
        let (head, body) = response.into_parts();
        body.collect().await.map_err(|e| HttpError::Lost(e.to_string()))?;
        match head.status {
            status if status.is_success() || status == StatusCode::FORBIDDEN => Ok(status),
            status => {
                let hint = head.headers.get(header::RETRY_AFTER).and_then(|v| v.to_str().ok());
                #[expect(clippy::disallowed_methods, reason = "a Retry-After may be a date, which is wall time")]
                let now = SystemTime::now();
                Err(HttpError::Status { status, retry_after: hint.and_then(|hint| retry_after(hint, now)) })
            }
        }
    }
}

/// Returns the innermost source of an error.
fn root(mut error: &dyn std::error::Error) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Reads `Retry-After` as seconds or as a date (RFC 9110, 10.2.3).
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    match value.trim().parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(value).ok().map(|at| at.duration_since(now).unwrap_or_default()),
    }
}

/// Classifies a result for all policies.
pub fn classify(result: &Result<StatusCode, HttpError>) -> Verdict {
    match result {
        Ok(_) => Verdict::success(),
        Err(HttpError::Connect(_)) => Verdict::failure(FailureKind::Connect),
        Err(HttpError::Lost(_)) => Verdict::failure(FailureKind::Other),
        Err(HttpError::Status { status, retry_after }) => {
            let verdict = Verdict::failure(match status.as_u16() {
                408 | 425 => FailureKind::Timeout,
                429 => FailureKind::Throttled,
                503 => FailureKind::Overloaded,
                500..=599 => FailureKind::Server,
                _ => FailureKind::Client,
            });
            retry_after.map_or(verdict, |wait| verdict.with_retry_after(wait))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert_eq!(retry_after(" 7 ", now), Some(Duration::from_secs(7)));
        let date = httpdate::fmt_http_date(now + Duration::from_secs(90));
        assert_eq!(retry_after(&date, now), Some(Duration::from_secs(90)));
        assert_eq!(retry_after(&httpdate::fmt_http_date(SystemTime::UNIX_EPOCH), now), Some(Duration::ZERO));
        assert_eq!(retry_after("soon", now), None);
    }

    #[test]
    fn statuses_are_judged_by_who_is_at_fault() {
        let kind = |code| {
            let status = StatusCode::from_u16(code).unwrap();
            classify(&Err(HttpError::Status { status, retry_after: None })).kind()
        };
        assert_eq!(kind(503), Some(FailureKind::Overloaded));
        assert_eq!(kind(500), Some(FailureKind::Server));
        assert_eq!(kind(429), Some(FailureKind::Throttled));
        assert_eq!(kind(404), Some(FailureKind::Client));
        assert_eq!(kind(408), Some(FailureKind::Timeout));
        assert!(classify(&Ok(StatusCode::FORBIDDEN)).is_success());
    }

    #[test]
    fn the_servers_hint_reaches_the_verdict() {
        let hint = Some(Duration::from_secs(7));
        let busy = Err(HttpError::Status { status: StatusCode::SERVICE_UNAVAILABLE, retry_after: hint });
        assert_eq!(classify(&busy).hint().retry_after(), hint);
    }
}
