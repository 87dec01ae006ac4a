//! What goes between routers, movers and shards, as JSON over HTTP, and the rows that it is about.
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

/// A row. Its shard key is the tenant, so that a tenant's orders lie together.
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

/// What a shard is asked.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// By a router, which has this version of the map.
    Put {
        order: Order,
        version: u64,
    },
    Get {
        tenant: u32,
        number: u32,
        version: u64,
    },
    /// Of all tenants here: for a fan-out.
    Total,
    Largest {
        count: usize,
    },
    /// By a mover.
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
    /// By the audit: every row that is in the file, whoever owns it.
    Everything,
}

/// What a shard answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Orders(Vec<Order>),
    Total {
        orders: u64,
        cents: u64,
    },
    /// The shard's own check has refused it: nothing was done.
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

/// A pooled client; a clone shares the pool.
#[derive(Clone)]
pub struct Http(Client<HttpConnector, Full<Bytes>>);

impl Http {
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // Whether a call is made again is the pipeline's to say.
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
            // 421, misdirected: asked of a shard that does not answer for that key, or not now.
            200 | 421 => serde_json::from_slice(&body).map_err(|e| lost(&e)),
            _ => Err(HttpError::Status(status)),
        }
    }
}

/// The one judge. A shard that refuses a key is well: that is an answer.
pub fn classify(result: &Result<Answer, HttpError>) -> Verdict {
    match result {
        Ok(_) => Verdict::success(),
        Err(HttpError::Connect) => Verdict::failure(FailureKind::Connect),
        Err(HttpError::Lost(_)) => Verdict::failure(FailureKind::Other),
        Err(HttpError::Status(_)) => Verdict::failure(FailureKind::Server),
    }
}
