//! A collector of OTLP over HTTP, which keeps what arrives.
use std::{
    collections::BTreeMap,
    io::Read as _,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header::CONTENT_ENCODING},
    routing::post,
};
use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::{
    collector::{metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest},
    metrics::v1::{metric::Data, number_data_point::Value},
};
use prost::Message;
use tokio::net::TcpListener;

use super::Result;

/// A span as it arrived.
#[derive(Clone)]
pub(crate) struct Arrived {
    pub(crate) trace: Vec<u8>,
    pub(crate) id: Vec<u8>,
    /// Id of the span that it is a part of; empty for the first one of a trace.
    pub(crate) parent: Vec<u8>,
    pub(crate) name: String,
    pub(crate) start: u64,
}

/// All that has arrived.
#[derive(Clone, Default)]
pub(crate) struct Collector {
    spans: Arc<Mutex<Vec<Arrived>>>,
    /// Sums of the counters, by name; of the other metrics the name alone.
    metrics: Arc<Mutex<BTreeMap<String, i64>>>,
}

impl Collector {
    /// Starts a collector at an address, or at any of loopback, and returns it with its address.
    pub(crate) async fn start(at: Option<SocketAddr>) -> Result<(Self, String)> {
        let collector = Self::default();
        let app = Router::new()
            .route("/v1/traces", post(take_spans))
            .route("/v1/metrics", post(take_metrics))
            .with_state(collector.clone());
        let listener = TcpListener::bind(at.unwrap_or(([127, 0, 0, 1], 0).into())).await?;
        let address = format!("http://{}", listener.local_addr()?);
        tokio::spawn(axum::serve(listener, app).into_future());
        Ok((collector, address))
    }

    /// Returns the spans, the earliest first.
    pub(crate) fn spans(&self) -> Vec<Arrived> {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone();
        spans.sort_by_key(|span| span.start);
        spans
    }

    pub(crate) fn metrics(&self) -> BTreeMap<String, i64> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Decodes the body of a request; `None` if it is damaged.
fn decode<T: Message + Default>(headers: &HeaderMap, body: &[u8]) -> Option<T> {
    if headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding != "gzip") {
        return T::decode(body).ok();
    }
    let mut plain = Vec::new();
    GzDecoder::new(body).read_to_end(&mut plain).ok()?;
    T::decode(&*plain).ok()
}

async fn take_spans(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let Some(request) = decode::<ExportTraceServiceRequest>(&headers, &body) else { return StatusCode::BAD_REQUEST };
    let scopes = request.resource_spans.into_iter().flat_map(|of| of.scope_spans);
    let spans = scopes.flat_map(|scope| scope.spans).map(|span| Arrived {
        trace: span.trace_id,
        id: span.span_id,
        parent: span.parent_span_id,
        name: span.name,
        start: span.start_time_unix_nano,
    });
    collector.spans.lock().unwrap_or_else(PoisonError::into_inner).extend(spans);
    StatusCode::OK
}

async fn take_metrics(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let Some(request) = decode::<ExportMetricsServiceRequest>(&headers, &body) else { return StatusCode::BAD_REQUEST };
    let scopes = request.resource_metrics.into_iter().flat_map(|of| of.scope_metrics);
    let mut sums = BTreeMap::new();
    for metric in scopes.flat_map(|scope| scope.metrics) {
        let points = match metric.data {
            Some(Data::Sum(sum)) => sum.data_points,
            _ => Vec::new(),
        };
        let value = |value: Option<Value>| if let Some(Value::AsInt(value)) = value { value } else { 0 };
        // Each set of labels is a metric of its own.
        *sums.entry(metric.name).or_default() += points.into_iter().map(|point| value(point.value)).sum::<i64>();
    }
    collector.metrics.lock().unwrap_or_else(PoisonError::into_inner).extend(sums);
    StatusCode::OK
}
