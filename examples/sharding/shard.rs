//! One shard: a process with its own file or name space, which checks every request by its copy of the map.
use std::{
    convert::Infallible,
    io::{self, Write as _},
    net::SocketAddr,
    sync::Arc,
};

use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, body::Bytes, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use steadfast::{
    port::Capability,
    sharding::{
        Access, KeyBytes, Move, Refused, ShardDirectory, ShardDirectoryConfig, ShardGuard, ShardId, ShardPermit,
    },
    store::{DeleteOptions, Key, PutOptions, Scan, Store, StoreExt, Write},
};
use tokio::net::TcpListener;

use crate::{
    Result,
    engine::Engine,
    wire::{Answer, Ask, Order},
};

/// The map, and the address of each shard.
#[derive(Clone, Debug)]
pub struct Shared {
    store: Arc<dyn Store>,
    name: String,
    addresses: String,
}

impl Shared {
    pub async fn open(engine: &Engine) -> Result<Self> {
        let store = engine.open().await?.store();
        Ok(Self { store, name: engine.name("orders"), addresses: engine.name("addresses") })
    }

    pub async fn directory(&self) -> Result<ShardDirectory> {
        let config = ShardDirectoryConfig::default().retry_timeout(crate::REQUEST * 5);
        Ok(ShardDirectory::builder(self.store.clone(), self.name.clone(), config).open().await?)
    }

    /// Returns the address of a shard, once it has published it.
    pub async fn address(&self, shard: ShardId) -> Result<Option<SocketAddr>> {
        let record = self.store.get(Key::new(&self.addresses, &shard.to_string())).await?;
        Ok(record.map(|record| std::str::from_utf8(&record.value).unwrap_or_default().parse()).transpose()?)
    }

    async fn publish(&self, shard: ShardId, address: String) -> Result<()> {
        let key = shard.to_string();
        self.store.put(Key::new(&self.addresses, &key), address.into(), PutOptions::default()).await?;
        Ok(())
    }
}

pub async fn serve(engine: &Engine, shard: ShardId) -> Result<()> {
    let map = Shared::open(engine).await?;
    let directory = map.directory().await?;
    let here = Arc::new(Shard {
        guard: ShardGuard::open(shard, &directory).await?,
        rows: engine.store_aside(&shard.to_string()).await?,
        orders: engine.name("orders"),
        directory,
    });
    // Reuses the port after a restart.
    let at = map.address(shard).await?.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let listener = TcpListener::bind(at).await?;
    let at = listener.local_addr()?.to_string();
    map.publish(shard, at.clone()).await?;
    writeln!(io::stdout().lock(), "{at}")?;
    loop {
        let stream = listener.accept().await?.0;
        stream.set_nodelay(true)?;
        let here = here.clone();
        let service = service_fn(move |request| respond(here.clone(), request));
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn respond(
    here: Arc<Shard>,
    request: Request<Incoming>,
) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    // In a separate task, which completes even if the client disconnects: a started write must not outlast its entry in the guard.
    let work = tokio::spawn(async move {
        let ask = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
        here.answer(ask).await
    });
    let (status, body) = match work.await {
        Ok(Ok(answer @ Answer::Refused(_))) => (StatusCode::MISDIRECTED_REQUEST, serde_json::to_vec(&answer)),
        Ok(Ok(answer)) => (StatusCode::OK, serde_json::to_vec(&answer)),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, Ok(error.to_string().into())),
        Err(panicked) => (StatusCode::INTERNAL_SERVER_ERROR, Ok(panicked.to_string().into())),
    };
    let mut response = Response::new(Full::new(body.unwrap_or_default().into()));
    *response.status_mut() = status;
    Ok(response)
}

struct Shard {
    guard: ShardGuard,
    directory: ShardDirectory,
    rows: Arc<dyn Store>,
    /// Partition of its rows.
    orders: String,
}

impl Shard {
    async fn answer(&self, ask: Ask) -> Result<Answer> {
        let refused = |refused| Ok(Answer::Refused(refused));
        match ask {
            Ask::Put { order, version } => match self.enter(order.tenant, Access::Write, version).await {
                Ok(_inside) => {
                    self.rows
                        .put(
                            Key::new(&self.orders, &order.row()),
                            serde_json::to_vec(&order)?.into(),
                            PutOptions::default(),
                        )
                        .await?;
                    Ok(Answer::Done)
                }
                Err(why) => refused(why),
            },
            Ask::Get { tenant, number, version } => match self.enter(tenant, Access::Read, version).await {
                Ok(_inside) => {
                    let row = Order { tenant, number, cents: 0 }.row();
                    let record = self.rows.get(Key::new(&self.orders, &row)).await?;
                    let order = record.map(|record| serde_json::from_slice(&record.value)).transpose()?;
                    Ok(Answer::Orders(order.into_iter().collect()))
                }
                Err(why) => refused(why),
            },
            Ask::Total => {
                let owned = self.owned().await?;
                Ok(Answer::Total { orders: owned.len() as u64, cents: owned.iter().map(|order| order.cents).sum() })
            }
            Ask::Largest { count } => {
                let mut owned = self.owned().await?;
                owned.sort_unstable_by(|a, b| b.cmp(a));
                owned.truncate(count);
                Ok(Answer::Orders(owned))
            }
            Ask::Install { version } => {
                let map = self.directory.refresh().await?;
                if map.version() < version {
                    return Err(format!("the map is at version {} still", map.version()).into());
                }
                self.guard.install(map).await;
                Ok(Answer::Done)
            }
            Ask::Read { work } => match self.guard.enter_move(&work) {
                Ok(_inside) => Ok(Answer::Orders(self.chunk(&work).await?)),
                Err(why) => refused(why),
            },
            Ask::Write { work, rows, gone } => match self.guard.enter_move(&work) {
                Ok(_inside) => {
                    let put =
                        |order: &Order| Ok(Write::put(order.row(), serde_json::to_vec(order)?, PutOptions::default()));
                    self.write(rows.iter().map(put).collect::<Result<_>>()?).await?;
                    self.write(gone.iter().map(|order| Write::delete(order.row(), DeleteOptions::default())).collect())
                        .await?;
                    Ok(Answer::Done)
                }
                Err(why) => refused(why),
            },
            Ask::Drop { work } => match self.guard.enter_move(&work) {
                Ok(_inside) => {
                    let rows = self.chunk(&work).await?;
                    self.write(rows.iter().map(|order| Write::delete(order.row(), DeleteOptions::default())).collect())
                        .await?;
                    Ok(Answer::Orders(rows))
                }
                Err(why) => refused(why),
            },
            Ask::Everything => Ok(Answer::Orders(self.everything().await?)),
        }
    }

    async fn enter(&self, tenant: u32, access: Access, router: u64) -> std::result::Result<ShardPermit, Refused> {
        self.guard.enter_fresh(&self.directory, &tenant, access, router).await
    }

    async fn write(&self, writes: Vec<Write>) -> Result<()> {
        if !self.rows.capabilities().has(Capability::AtomicBatch) {
            // A mover that is interrupted makes all its writes again.
            for write in writes {
                match write {
                    Write::Put { row, value, options } => {
                        self.rows.put(Key::new(&self.orders, &row), value, options).await?;
                    }
                    Write::Delete { row, options } => {
                        self.rows.delete(Key::new(&self.orders, &row), options).await?;
                    }
                    _ => return Err("a write that no shard makes".into()),
                }
            }
            return Ok(());
        }
        for batch in writes.chunks(self.rows.capabilities().max_batch()) {
            self.rows.batch(&self.orders, batch.to_vec()).await?;
        }
        Ok(())
    }

    async fn everything(&self) -> Result<Vec<Order>> {
        let rows = self.rows.scan_all(Scan::partition(&self.orders).limit(1_000)).await?;
        rows.iter().map(|row| Ok(serde_json::from_slice(&row.value)?)).collect()
    }

    /// Excludes rows that are still being copied here, or not yet deleted.
    async fn owned(&self) -> Result<Vec<Order>> {
        let (map, mut rows) = (self.guard.map(), self.everything().await?);
        rows.retain(|order| map.shard_of(&order.tenant) == Some(self.guard.shard()));
        Ok(rows)
    }

    async fn chunk(&self, work: &Move) -> Result<Vec<Order>> {
        let (map, mut rows) = (self.guard.map(), self.everything().await?);
        rows.retain(|order| map.chunk_contains(&work.chunk, KeyBytes::of(&order.tenant).as_slice()));
        Ok(rows)
    }
}
