//! Answers to probes over HTTP. Compiled with the features `http` and `operations`.
use std::fmt::Write as _;

use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};

use crate::health::{Group, Health, HealthStatus, Report};

/// Header of a request that has the secret.
const SECRET: &str = "x-health-secret";

/// Header of a request whose value is returned in the answer, so that a monitor knows that the
/// answer is one to its own request.
const NONCE: &str = "x-health-nonce";

/// Maximum length of a nonce.
const MAX_NONCE: usize = 64;

impl Health {
    /// Returns the answer to a probe of a group: 503 if it is unhealthy, else 200.
    ///
    /// | request | answer |
    /// |---|---|
    /// | anonymous | the status as one word |
    /// | with the secret in the header `x-health-secret` | details: each check with its kind, status, reason, latency and age |
    /// | with a wrong secret | 404 without body and headers, as for an unknown path |
    ///
    /// Details repeat the header `x-health-nonce` of the request, of 64 visible characters at most.
    /// No answer has the text of an error, and no other than a 404 may be stored (`no-store`).
    ///
    /// ```
    /// use http::{HeaderMap, Response};
    /// use steadfast::{config::Secret, health::{Check, Group, Health, HealthConfig}};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bad = Check::dependency("orders-db", || async { Err("no route to 10.0.0.7") });
    /// let config = HealthConfig::default();
    /// let health = Health::builder(config).check(bad).secret(Secret::new("sesame")).build()?;
    ///
    /// let mut headers = HeaderMap::new();
    /// let answer: Response<String> = health.answer(&Group::Readiness, &headers).await;
    /// assert_eq!((answer.status().as_u16(), answer.body().as_str()), (200, "degraded"));
    ///
    /// headers.insert("x-health-secret", "sesame".parse()?);
    /// headers.insert("x-health-nonce", "7f3a".parse()?);
    /// let answer: Response<String> = health.answer(&Group::Readiness, &headers).await;
    /// let line = "orders-db dependency degraded error latency 0ns age 0ns";
    /// assert_eq!(answer.body(), &format!("degraded\n{line}\nnonce 7f3a\n"));
    ///
    /// headers.insert("x-health-secret", "barley".parse()?);
    /// let answer: Response<String> = health.answer(&Group::Readiness, &headers).await;
    /// assert_eq!((answer.status().as_u16(), answer.body().as_str()), (404, ""));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// As that of [`report`](Self::report).
    pub async fn answer<B: From<String>>(&self, group: &Group, headers: &HeaderMap) -> Response<B> {
        match headers.get(SECRET) {
            None => {
                let status = self.status(group).await;
                respond(code_of(status), status.as_str().to_owned())
            }
            Some(secret) => Box::pin(self.details(group, secret.to_str().unwrap_or_default(), headers)).await,
        }
    }

    /// Returns the details of a group for a request whose secret is a part of its path, or a
    /// parameter: for tools that send no headers. A wrong secret is answered by 404.
    ///
    /// # Cancel safety
    /// As that of [`report`](Self::report).
    pub async fn details<B: From<String>>(&self, group: &Group, secret: &str, headers: &HeaderMap) -> Response<B> {
        if !self.is_secret(secret) {
            // Without a header of ours, as servers answer an unknown path.
            let mut unknown = Response::new(B::from(String::new()));
            *unknown.status_mut() = StatusCode::NOT_FOUND;
            return unknown;
        }
        let report = self.report(group).await;
        let nonce = headers.get(NONCE).and_then(|nonce| nonce.to_str().ok());
        let nonce = nonce.filter(|nonce| nonce.len() <= MAX_NONCE && nonce.bytes().all(|byte| byte.is_ascii_graphic()));
        respond(code_of(report.status), text_of(&report, nonce))
    }
}

fn code_of(status: HealthStatus) -> StatusCode {
    match status {
        HealthStatus::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
        HealthStatus::Healthy | HealthStatus::Degraded => StatusCode::OK,
    }
}

/// Returns the details as lines of words.
fn text_of(report: &Report, nonce: Option<&str>) -> String {
    let mut text = report.status.as_str().to_owned();
    if let Some(reason) = report.reason {
        let _ = write!(text, " {}", reason.as_str());
    }
    text.push('\n');
    for check in &report.checks {
        let (kind, status) = (check.kind.as_str(), check.status.as_str());
        let reason = check.reason.map_or("ok", |reason| reason.as_str());
        let _ =
            writeln!(text, "{} {kind} {status} {reason} latency {:?} age {:?}", check.name, check.latency, check.age);
    }
    if let Some(nonce) = nonce {
        let _ = writeln!(text, "nonce {nonce}");
    }
    text
}

fn respond<B: From<String>>(status: StatusCode, body: String) -> Response<B> {
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
