//! An object store of this example: files in a folder, which clients write over HTTP with the URLs that it signs.
//!
//! A URL ends with a key of `ValetKeys`, whose tag has the headers that it binds.
use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::StatusCode,
    routing::put,
};
use futures::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    local::LocalFileSystem,
    path::Path,
    signer::{Method, SignedUrlOptions, Signer, Url},
};
use steadfast::{
    token::KeyRing,
    valet_key::{Grant, Operation, ValetKeyConfig, ValetKeys},
};

#[derive(Clone)]
pub(crate) struct Bucket {
    files: Arc<LocalFileSystem>,
    keys: ValetKeys,
    address: String,
    /// Number of steps until this process stops at one, for its parent to kill it. Each request is two: before and after.
    steps: Arc<AtomicI64>,
    /// Where it says that it has stopped.
    stopped: PathBuf,
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: "folder", source: source.into() }
}

impl Bucket {
    pub(crate) fn new(folder: &std::path::Path, ring: KeyRing, address: &str) -> Result<Self> {
        let files = Arc::new(LocalFileSystem::new_with_prefix(folder.join("bucket"))?);
        let keys = ValetKeys::new("bucket", ring, ValetKeyConfig::default()).map_err(failed)?;
        let (steps, stopped) = (Arc::new(AtomicI64::new(i64::MAX)), folder.join("stopped"));
        Ok(Self { files, keys, address: address.to_owned(), steps, stopped })
    }

    /// Stops for ever after so many steps.
    pub(crate) fn stop_after(&self, steps: i64) {
        self.steps.store(steps, SeqCst);
    }

    async fn step(&self) {
        if self.steps.fetch_sub(1, SeqCst) == 0 {
            let _ = std::fs::write(&self.stopped, "");
            std::future::pending::<()>().await;
        }
    }

    async fn request<T>(&self, apply: impl Future<Output = Result<T>>) -> Result<T> {
        self.step().await;
        let applied = apply.await;
        self.step().await;
        applied
    }

    /// The server of the bucket, which knows keys and neither rows nor uploads.
    pub(crate) fn server(self) -> Router {
        Router::new().route("/{*path}", put(write)).with_state(self)
    }
}

async fn write(State(bucket): State<Bucket>, request: Request) -> StatusCode {
    let key = request.uri().query().and_then(|query| query.strip_prefix("key=")).unwrap_or_default();
    let pass = match bucket.keys.check(Operation::Put, request.uri().path(), key).await {
        Ok(pass) => pass,
        Err(refused) => return StatusCode::from_u16(refused.status()).unwrap_or(StatusCode::FORBIDDEN),
    };
    for bound in pass.tag().unwrap_or_default().split(';').filter(|bound| !bound.is_empty()) {
        let Some((name, value)) = bound.split_once('=') else { return StatusCode::FORBIDDEN };
        if request.headers().get(name).and_then(|sent| sent.to_str().ok()) != Some(value) {
            return StatusCode::FORBIDDEN;
        }
    }
    let path = Path::from(pass.path());
    if bucket.files.head(&path).await.is_ok() {
        return StatusCode::PRECONDITION_FAILED;
    }
    let Ok(body) = axum::body::to_bytes(Body::new(request.into_body()), 1 << 20).await else {
        return StatusCode::BAD_REQUEST;
    };
    match bucket.files.put(&path, body.into()).await {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[async_trait]
impl Signer for Bucket {
    async fn signed_url(&self, method: Method, path: &Path, expires_in: Duration) -> Result<Url> {
        self.signed_url_opts(method, path, expires_in, &SignedUrlOptions::new()).await
    }

    async fn signed_url_opts(
        &self,
        _: Method,
        path: &Path,
        expires_in: Duration,
        options: &SignedUrlOptions,
    ) -> Result<Url> {
        let mut bound = Vec::new();
        for (name, value) in &options.signed_headers {
            bound.push(format!("{name}={}", value.to_str().map_err(failed)?));
        }
        let grant = Grant::put(path.as_ref()).expires_in(expires_in).tag(bound.join(";"));
        let key = self.keys.issue(grant).map_err(failed)?;
        Url::parse(&format!("http://{}/{path}?key={}", self.address, key.as_str())).map_err(failed)
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bucket")
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bucket")
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.request(self.files.put_opts(path, payload, options)).await
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.files.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.request(self.files.get_opts(path, options)).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let bucket = self.clone();
        let deleted = paths.then(move |path| {
            let bucket = bucket.clone();
            async move {
                let path = path?;
                bucket.request(bucket.files.delete(&path)).await?;
                Ok(path)
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.request(self.files.copy_opts(from, to, options)).await
    }
}
