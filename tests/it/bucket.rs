//! A bucket in memory whose requests pass through a store, so that the faults of stores are its faults. It counts them.
use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use futures::{
    FutureExt as _, StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory,
    path::Path,
};
use steadfast::{
    port::{Capabilities, Capability, PortError, PortErrorKind},
    store::{DeleteOptions, Key, Page, PutOptions as StorePut, Record, Scan, Store, StoreFuture, Version, Write},
};

/// A request, which a network may deliver twice.
type Request = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The bucket's side of the connection: it carries out the request that a row names.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<HashMap<String, Request>>>);

impl Server {
    async fn serve(&self, id: &str) {
        let request = self.0.lock().unwrap()[id].clone();
        request().await;
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

/// The answer to a request that no bucket makes.
fn unasked<'a, T: Send + 'a>() -> StoreFuture<'a, T> {
    Box::pin(async { Err(PortError::new(PortErrorKind::Unsupported, "no request of a bucket").into()) })
}

impl Store for Server {
    fn capabilities(&self) -> Capabilities {
        Capabilities::of("bucket", &[Capability::Linearizable])
    }
    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            self.serve(key.row).await;
            Ok(None)
        })
    }
    fn put<'a>(&'a self, key: Key<'a>, _: Bytes, _: StorePut) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            self.serve(key.row).await;
            Ok(Version::new(1))
        })
    }
    fn delete<'a>(&'a self, _: Key<'a>, _: DeleteOptions) -> StoreFuture<'a, bool> {
        unasked()
    }
    fn scan<'a>(&'a self, _: &'a Scan) -> StoreFuture<'a, Page> {
        unasked()
    }
    fn batch<'a>(&'a self, _: &'a str, _: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        unasked()
    }
}

/// Requests that were made, and the habits of a bucket.
#[derive(Debug, Default)]
pub(crate) struct Habits {
    pub(crate) puts: AtomicUsize,
    pub(crate) heads: AtomicUsize,
    pub(crate) gets: AtomicUsize,
    pub(crate) deletes: AtomicUsize,
    /// Bytes of objects that were read.
    pub(crate) read: Arc<AtomicUsize>,
    /// A create-only put overwrites.
    pub(crate) overwrites: AtomicBool,
    /// A create-only put is refused as not implemented.
    pub(crate) has_no_create: AtomicBool,
    /// Attributes are refused, as by a folder.
    pub(crate) has_no_attributes: AtomicBool,
    /// A put answers well, and stores nothing.
    pub(crate) forgets: AtomicBool,
}

/// The bucket as one process reaches it.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    objects: Arc<InMemory>,
    pub(crate) habits: Arc<Habits>,
    server: Server,
    link: Arc<dyn Store>,
    /// HEAD is no request, and says of each object that it is there, with this size.
    pub(crate) trusts: Option<usize>,
}

impl Bucket {
    /// Creates an empty bucket.
    pub(crate) fn new() -> Self {
        let server = Server::default();
        let link = Arc::new(server.clone());
        Self { objects: Arc::default(), habits: Arc::default(), server, link, trusts: None }
    }

    /// Returns the same bucket, behind the faults of a store.
    pub(crate) fn behind(&self, faulty: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { link: faulty(Arc::new(self.server.clone())), ..self.clone() })
    }

    /// Returns the names of the objects. It is no request.
    pub(crate) fn keys(&self) -> Vec<String> {
        let all = self.objects.list(None).collect::<Vec<_>>().now_or_never().unwrap();
        all.into_iter().map(|found| found.unwrap().location.to_string()).collect()
    }

    /// Carries out a request that was sent before.
    pub(crate) fn arrive(&self, id: &str) {
        self.server.serve(id).now_or_never().unwrap();
    }

    /// Returns the bytes of an object.
    pub(crate) fn read(&self, key: &str) -> Option<Bytes> {
        let found = self.objects.get(&key.into()).now_or_never().unwrap().ok()?;
        Some(found.bytes().now_or_never().unwrap().unwrap())
    }

    /// Writes an object, as somebody else.
    pub(crate) fn write(&self, key: &str, bytes: &'static [u8]) {
        self.objects.put(&key.into(), Bytes::from_static(bytes).into()).now_or_never().unwrap().unwrap();
    }

    /// Deletes an object, as somebody else.
    pub(crate) fn lose(&self, key: &str) {
        self.objects.delete(&key.into()).now_or_never().unwrap().unwrap();
    }

    /// Returns the numbers of puts, HEADs and deletes since the last call.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [&self.habits.puts, &self.habits.heads, &self.habits.deletes].map(|count| count.swap(0, SeqCst))
    }

    async fn ask<T: Send + 'static>(
        &self,
        writes: bool,
        request: impl Fn(Arc<InMemory>) -> BoxFuture<'static, Result<T>> + Send + Sync + 'static,
    ) -> Result<T> {
        let answer: Arc<Mutex<Option<Result<T>>>> = Arc::default();
        let (objects, slot) = (self.objects.clone(), answer.clone());
        let request: Request = Arc::new(move || {
            let (done, slot) = (request(objects.clone()), slot.clone());
            Box::pin(async move {
                let done = done.await;
                // Of a request that came twice the first answer counts.
                slot.lock().unwrap().get_or_insert(done);
            })
        });
        let id = {
            let mut all = self.server.0.lock().unwrap();
            let id = format!("request {}", all.len());
            all.insert(id.clone(), request);
            id
        };
        let key = Key::new("bucket", &id);
        let sent = if writes {
            self.link.put(key, Bytes::new(), StorePut::new()).await.map(drop)
        } else {
            self.link.get(key).await.map(drop)
        };
        match sent {
            Ok(()) => answer.lock().unwrap().take().unwrap(),
            Err(error) => Err(Error::Generic { store: "bucket", source: Box::new(error) }),
        }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bucket")
    }
}

fn not_there<T: Send + 'static>(operation: &str) -> Result<T> {
    Err(Error::NotImplemented { operation: operation.to_owned(), implementer: "Bucket".to_owned() })
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

impl ObjectStore for Bucket {
    fn put_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Answer<'c, PutResult>
    where
        'a: 'c,
        'b: 'c,
    {
        let location = location.clone();
        Box::pin(async move {
            let mut opts = opts;
            let has = |habit: &AtomicBool| habit.load(SeqCst);
            if has(&self.habits.has_no_attributes) && !opts.attributes.is_empty() {
                return not_there("attributes");
            }
            self.habits.puts.fetch_add(1, SeqCst);
            if opts.mode == PutMode::Create && has(&self.habits.has_no_create) {
                return not_there("create");
            }
            if has(&self.habits.overwrites) {
                opts.mode = PutMode::Overwrite;
            }
            let forgets = has(&self.habits.forgets);
            let put = move |objects: Arc<InMemory>| {
                let (location, payload, opts) = (location.clone(), payload.clone(), opts.clone());
                async move {
                    if forgets {
                        return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
                    }
                    objects.put_opts(&location, payload, opts).await
                }
                .boxed()
            };
            self.ask(true, put).await
        })
    }

    fn put_multipart_opts<'a, 'b, 'c>(
        &'a self,
        _: &'b Path,
        _: PutMultipartOptions,
    ) -> Answer<'c, Box<dyn MultipartUpload>>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async { not_there("multipart") })
    }

    fn get_opts<'a, 'b, 'c>(&'a self, location: &'b Path, options: GetOptions) -> Answer<'c, GetResult>
    where
        'a: 'c,
        'b: 'c,
    {
        let location = location.clone();
        Box::pin(async move {
            if options.head { &self.habits.heads } else { &self.habits.gets }.fetch_add(1, SeqCst);
            if let Some(size) = self.trusts.filter(|_| options.head) {
                let believed = InMemory::new();
                believed.put(&location, vec![0; size].into()).await?;
                return believed.get_opts(&location, options).await;
            }
            let get = move |objects: Arc<InMemory>| {
                let (location, options) = (location.clone(), options.clone());
                async move { objects.get_opts(&location, options).await }.boxed()
            };
            let mut found = self.ask(false, get).await?;
            let read = self.habits.read.clone();
            if let GetResultPayload::Stream(stream) = found.payload {
                let counted = stream.inspect_ok(move |bytes| _ = read.fetch_add(bytes.len(), SeqCst));
                found.payload = GetResultPayload::Stream(counted.boxed());
            }
            Ok(found)
        })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let delete = move |location: Result<Path>| {
            let this = this.clone();
            async move {
                let location = location?;
                this.habits.deletes.fetch_add(1, SeqCst);
                let path = location.clone();
                let delete = move |objects: Arc<InMemory>| {
                    let path = path.clone();
                    async move { objects.delete(&path).await }.boxed()
                };
                this.ask(true, delete).await?;
                Ok(location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::once(async { not_there("list") }).boxed()
    }

    fn list_with_delimiter<'a, 'b, 'c>(&'a self, _: Option<&'b Path>) -> Answer<'c, ListResult>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async { not_there("list") })
    }

    fn copy_opts<'a, 'b, 'd, 'c>(&'a self, _: &'b Path, _: &'d Path, _: CopyOptions) -> Answer<'c, ()>
    where
        'a: 'c,
        'b: 'c,
        'd: 'c,
    {
        Box::pin(async { not_there("copy") })
    }
}
