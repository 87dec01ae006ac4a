//! A gate in front of a handler that reads 1 KiB of JSON, and a handler that checks the same by hand.
use std::{convert::Infallible, hint::black_box, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
    routing::post,
};
use serde::Deserialize;
use steadfast::tower::{GateConfig, GateLayer, GateRules};
use tower_service::Service;

use crate::{Line, often};

#[derive(Deserialize)]
struct Order {
    number: u32,
    text: String,
}

const MAX_BODY: usize = 64 << 10;

pub fn lines() -> Vec<Line> {
    let rules = GateRules::new().post("/orders").json().max_body(MAX_BODY).keep_headers(["idempotency-key"]);
    let gate = GateLayer::new(rules, GateConfig::default()).expect("valid rules");
    let ours = Router::new().route("/orders", post(accept)).layer(gate);
    let theirs = Router::new().route("/orders", post(by_hand)).layer(DefaultBodyLimit::max(MAX_BODY));
    vec![Line { name: "a gate with 1 KiB of JSON", most: 1.1, ours: subject(ours), theirs: subject(theirs) }]
}

fn subject(app: Router) -> crate::Work {
    let body = Bytes::from(format!(r#"{{"number":7,"text":"{}"}}"#, "x".repeat(1000)));
    often(move || {
        let (mut app, body) = (app.clone(), body.clone());
        async move {
            let request = Request::post("/orders")
                .header("host", "shop.example")
                .header("user-agent", "bench/1.0")
                .header("accept", "*/*")
                .header("content-type", "application/json")
                .header("content-length", body.len())
                .header("idempotency-key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
                .header("x-forwarded-for", "192.0.2.7");
            let answer: Result<_, Infallible> = app.call(request.body(Body::from(body)).expect("a request")).await;
            assert_eq!(black_box(answer.expect("an answer")).status(), StatusCode::ACCEPTED);
        }
    })
}

async fn accept(body: Bytes) -> StatusCode {
    match serde_json::from_slice::<Order>(&body) {
        Ok(order) if black_box(order.number) == 7 && !order.text.is_empty() => StatusCode::ACCEPTED,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

/// The same checks, as a service writes them into its handler.
async fn by_hand(mut request: Request) -> StatusCode {
    if let Err(status) = check(&request) {
        return status;
    }
    let mut kept = HeaderMap::new();
    for name in [header::HeaderName::from_static("idempotency-key"), header::CONTENT_TYPE, header::CONTENT_LENGTH] {
        if let Some(value) = request.headers_mut().remove(&name) {
            kept.insert(name, value);
        }
    }
    *request.headers_mut() = kept;
    let read = tokio::time::timeout(Duration::from_secs(10), Bytes::from_request(request, &()));
    match read.await {
        Ok(Ok(body)) => accept(body).await,
        Ok(Err(_)) => StatusCode::PAYLOAD_TOO_LARGE,
        Err(_) => StatusCode::REQUEST_TIMEOUT,
    }
}

fn check(request: &Request) -> Result<(), StatusCode> {
    let (uri, headers) = (request.uri(), request.headers());
    if uri.path_and_query().is_none_or(|both| both.as_str().len() > 2048) {
        return Err(StatusCode::URI_TOO_LONG);
    }
    let path = uri.path();
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"%;\\".contains(&byte));
    let has_dots = path.split('/').skip(1).any(|segment| matches!(segment, "" | "." | ".."));
    if !is_plain || has_dots || uri.authority().is_some() {
        return Err(StatusCode::BAD_REQUEST);
    }
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if headers.len() > 64 || size > 16 << 10 {
        return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    let one = |name| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    if one(header::HOST).is_none() || headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(StatusCode::BAD_REQUEST);
    }
    if headers.get_all("idempotency-key").iter().nth(1).is_some() {
        return Err(StatusCode::BAD_REQUEST);
    }
    let length = one(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    match length {
        None => return Err(StatusCode::LENGTH_REQUIRED),
        Some(length) if length > MAX_BODY => return Err(StatusCode::PAYLOAD_TOO_LARGE),
        Some(_) => {}
    }
    let is_json = one(header::CONTENT_TYPE)
        .and_then(|name| name.to_str().ok()?.split(';').next())
        .is_some_and(|name| name.trim().eq_ignore_ascii_case("application/json"));
    if !is_json || headers.contains_key(header::CONTENT_ENCODING) {
        return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    Ok(())
}
