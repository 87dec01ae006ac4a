//! The messages between routers, movers and shards, as JSON over HTTP, and the rows.
use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::{Request, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, Serialize};
use steadfast::{
    FailureKind, Verdict,
    sharding::{Move, Refused},
};

/// A row. Its shard key is the tenant, so that one shard holds all orders of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Order {
    pub cents: u64,
    pub tenant: u32,
    pub number: u32,
}

impl Order {
    pub fn row(&self) -> String {
        format!("{:08}/{:08}", self.tenant, self.number)
    }
}

/// A request to a shard.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// From a router with this version of the map.
    Put {
        order: Order,
        version: u64,
    },
    Get {
        tenant: u32,
        number: u32,
        version: u64,
    },
    /// For all tenants of the shard: a fan-out.
    Total,
    Largest {
        count: usize,
    },
    /// From a mover.
    Install {
        version: u64,
    },
    Read {
        work: Move,
    },
    Write {
        work: Move,
        rows: Vec<Order>,
        gone: Vec<Order>,
    },
    Drop {
        work: Move,
    },
    /// From the audit: every row in the file, whichever shard owns it.
    Everything,
}

/// A response of a shard.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Orders(Vec<Order>),
    Total {
        orders: u64,
        cents: u64,
    },
    /// The shard's own check refused the request; nothing was done.
    Refused(Refused),
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum HttpError {
    #[error("not connected")]
    Connect,
    #[error("connection lost: {0}")]
    Lost(String),
    #[error("HTTP {0}")]
    Status(u16),
}

/// A pooled client; clones share the pool.
#[derive(Clone)]
pub struct Http(Client<HttpConnector, Full<Bytes>>);

impl Http {
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // Only the pipeline retries calls.
        Self(Client::builder(TokioExecutor::new()).retry_canceled_requests(false).build(connector))
    }

    pub async fn ask(&self, address: SocketAddr, ask: &Ask) -> Result<Answer, HttpError> {
        let lost = |error: &dyn std::error::Error| HttpError::Lost(error.to_string());
        let body = serde_json::to_vec(ask).map_err(|e| lost(&e))?;
        let request = Request::post(format!("http://{address}/")).body(Full::new(body.into())).map_err(|e| lost(&e))?;
        let response =
            self.0.request(request).await.map_err(|e| if e.is_connect() { HttpError::Connect } else { lost(&e) })?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|e| lost(&e))?.to_bytes();
        match status {
            // 421, misdirected: the shard does not serve that key, or not now.
            200 | 421 => serde_json::from_slice(&body).map_err(|e| lost(&e)),
            _ => Err(HttpError::Status(status)),
        }
    }
}

/// The classifier. A refused key is an answer of a healthy shard.
pub fn classify(result: &Result<Answer, HttpError>) -> Verdict {
    match result {
        Ok(_) => Verdict::success(),
        Err(HttpError::Connect) => Verdict::failure(FailureKind::Connect),
        Err(HttpError::Lost(_)) => Verdict::failure(FailureKind::Other),
        Err(HttpError::Status(_)) => Verdict::failure(FailureKind::Server),
    }
}
