//! An object store in memory with signed URLs. Each of its requests is two requests to a store, one before it and one after it, so
//! that the faults, delays and crashes of stores are its own.
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt, StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    Attribute, Attributes, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    memory::InMemory,
    path::Path,
    signer::{HeaderMap, Method, SignedUrlOptions, Signer, Url},
};
use steadfast::{
    store::{InMemoryStore, Key, Store},
    time::{Clock, Timestamp},
    valet_key::Ticket,
};

/// Two contents of one length, and the SHA-256 of each.
pub(crate) const SCAN: &[u8] = b"%PDF-1.7 a scan";
pub(crate) const SCAM: &[u8] = b"%PDF-1.7 a scam";
pub(crate) const SCAN_BASE64: &str = "Q2smFHzh4oQCEAmfiFoUeQ4OrnCf16m5YW9FGcoI7P4=";
pub(crate) const SCAN_SHA256: [u8; 32] = [
    0x43, 0x6b, 0x26, 0x14, 0x7c, 0xe1, 0xe2, 0x84, 0x02, 0x10, 0x09, 0x9f, 0x88, 0x5a, 0x14, 0x79, 0x0e, 0x0e, 0xae,
    0x70, 0x9f, 0xd7, 0xa9, 0xb9, 0x61, 0x6f, 0x45, 0x19, 0xca, 0x08, 0xec, 0xfe,
];

type Hook = Box<dyn FnMut(&str, &Bucket) + Send>;

struct Signed {
    path: Path,
    headers: HeaderMap,
    until: Timestamp,
}

#[derive(Clone)]
pub(crate) struct Bucket {
    objects: Arc<InMemory>,
    gate: Arc<dyn Store>,
    clock: Clock,
    signed: Arc<Mutex<BTreeMap<String, Signed>>>,
    hook: Arc<Mutex<Option<Hook>>>,
}

impl Bucket {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            objects: Arc::default(),
            gate: Arc::new(InMemoryStore::builder().clock(clock).build()),
            clock: clock.clone(),
            signed: Arc::default(),
            hook: Arc::default(),
        }
    }

    /// The same bucket, whose requests pass through this store.
    pub(crate) fn behind(&self, gate: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Self {
        Self { gate: gate(Arc::new(InMemoryStore::builder().clock(&self.clock).build())), ..self.clone() }
    }

    /// Calls this after each request that was applied.
    pub(crate) fn on_request(&self, hook: impl FnMut(&str, &Self) + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    /// All objects, as their owner sees them.
    pub(crate) fn all(&self) -> BTreeMap<String, Vec<u8>> {
        let all = async {
            let metas: Vec<_> = self.objects.list(None).try_collect().await.unwrap();
            let mut all = BTreeMap::new();
            for meta in metas {
                let bytes = self.objects.get(&meta.location).await.unwrap().bytes().await.unwrap();
                all.insert(meta.location.to_string(), bytes.to_vec());
            }
            all
        };
        all.now_or_never().unwrap()
    }

    pub(crate) fn accepted(&self) -> Vec<(String, Vec<u8>)> {
        self.all().into_iter().filter(|(path, _)| path.starts_with("copies/")).collect()
    }

    pub(crate) fn incoming(&self) -> usize {
        self.all().keys().filter(|path| path.starts_with("incoming/")).count()
    }

    pub(crate) fn bound(&self, ticket: &Ticket) -> Vec<String> {
        let signed = self.signed.lock().unwrap();
        let mut names: Vec<_> = signed[&ticket.url].headers.keys().map(|name| name.as_str().to_owned()).collect();
        names.sort();
        names
    }

    pub(crate) fn path(&self, ticket: &Ticket) -> String {
        self.signed.lock().unwrap()[&ticket.url].path.to_string()
    }

    /// The client's request with the URL and the headers of its ticket.
    pub(crate) fn upload(&self, ticket: &Ticket, body: &'static [u8]) -> std::result::Result<(), &'static str> {
        self.upload_with(ticket, &ticket.headers, body)
    }

    /// The client's request, checked as the store would check it.
    pub(crate) fn upload_with(
        &self,
        ticket: &Ticket,
        sent: &[(&'static str, String)],
        body: &'static [u8],
    ) -> std::result::Result<(), &'static str> {
        let signed = self.signed.lock().unwrap();
        let Signed { path, headers, until } = signed.get(&ticket.url).ok_or("signature")?;
        let header = |name: &str| sent.iter().find(|(sent, _)| *sent == name).map(|(_, value)| value.as_str());
        if self.clock.wall() >= *until {
            return Err("expired");
        }
        if headers.iter().any(|(name, value)| header(name.as_str()) != value.to_str().ok()) {
            return Err("signature");
        }
        if header("x-amz-checksum-sha256").is_some_and(|digest| digest != SCAN_BASE64 || body != SCAN) {
            return Err("checksum");
        }
        let range = format!("{0},{0}", body.len());
        if header("x-goog-content-length-range").is_some_and(|declared| declared != range) {
            return Err("length");
        }
        let is_new = header("if-none-match").is_some() || header("x-goog-if-generation-match").is_some();
        let mut attributes = Attributes::new();
        if let Some(content_type) = header("content-type") {
            attributes.insert(Attribute::ContentType, content_type.to_owned().into());
        }
        let mode = if is_new { PutMode::Create } else { PutMode::Overwrite };
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        let put = self.objects.put_opts(path, PutPayload::from_static(body), options);
        put.now_or_never().unwrap().map(|_| ()).map_err(|_| "exists")
    }

    async fn request<T>(&self, method: &str, path: &Path, apply: impl Future<Output = Result<T>>) -> Result<T> {
        let row = format!("{method} {path}");
        let fail = |error: steadfast::store::StoreError| Error::Generic { store: "bucket", source: Box::new(error) };
        self.gate.put(Key::new("before", &row), "".into(), Default::default()).await.map_err(fail)?;
        let applied = apply.await;
        let hook = self.hook.lock().unwrap().take();
        if let Some(mut hook) = hook {
            hook(method, self);
            self.hook.lock().unwrap().get_or_insert(hook);
        }
        self.gate.put(Key::new("after", &row), "".into(), Default::default()).await.map_err(fail)?;
        applied
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
impl Signer for Bucket {
    async fn signed_url(&self, method: Method, path: &Path, expires_in: Duration) -> Result<Url> {
        self.signed_url_opts(method, path, expires_in, &SignedUrlOptions::new()).await
    }

    async fn signed_url_opts(
        &self,
        method: Method,
        path: &Path,
        expires_in: Duration,
        options: &SignedUrlOptions,
    ) -> Result<Url> {
        assert_eq!(method, Method::PUT);
        let mut signed = self.signed.lock().unwrap();
        let url = Url::parse(&format!("https://bucket.example/{path}?signature={}", signed.len())).unwrap();
        let (headers, until) = (options.signed_headers.clone(), self.clock.wall() + expires_in);
        signed.insert(url.to_string(), Signed { path: path.clone(), headers, until });
        Ok(url)
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.request("put", path, self.objects.put_opts(path, payload, options)).await
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let method = if options.head { "head" } else { "get" };
        self.request(method, path, self.objects.get_opts(path, options)).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let bucket = self.clone();
        let deleted = paths.then(move |path| {
            let bucket = bucket.clone();
            async move {
                let path = path?;
                bucket.request("delete", &path, bucket.objects.delete(&path)).await?;
                Ok(path)
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.request("copy", to, self.objects.copy_opts(from, to, options)).await
    }
}
