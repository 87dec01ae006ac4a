//! A store and a bucket that tell the control of each step before it is made, and wait until it may be.
use std::{
    collections::BTreeSet,
    fmt,
    pin::Pin,
    sync::{self, Arc, PoisonError},
};

use futures::{StreamExt as _, stream::BoxStream};
use hyper::body::Bytes;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, local::LocalFileSystem, path::Path,
};
use steadfast::{
    port::Capabilities,
    store::{DeleteOptions, Key, Page, PutOptions as StorePut, Record, Scan, Store, StoreFuture, Version, Write},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines, Stdin},
    sync::Mutex,
};

/// The steps of a job. Clones are the same.
#[derive(Clone)]
pub(crate) struct Steps {
    answers: Arc<Mutex<Lines<BufReader<Stdin>>>>,
    /// Keys of the objects that were put.
    puts: Arc<sync::Mutex<BTreeSet<String>>>,
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self { answers: Arc::new(Mutex::new(BufReader::new(tokio::io::stdin()).lines())), puts: Arc::default() }
    }

    /// Returns the number of objects that were put. One that was put again after a time-out counts once.
    pub(crate) fn puts(&self) -> usize {
        self.puts.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn of_store(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(StepStore { store, steps: self.clone() })
    }

    pub(crate) fn of_bucket(&self, bucket: Arc<LocalFileSystem>) -> Arc<dyn ObjectStore> {
        Arc::new(StepBucket { bucket, steps: self.clone() })
    }

    async fn step(&self, what: &str, key: &str) {
        let mut answers = self.answers.lock().await;
        crate::common::say(format!("step {what} {key}"));
        let _ = answers.next_line().await;
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct StepStore {
    store: Arc<dyn Store>,
    steps: Steps,
}

impl Store for StepStore {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        self.store.get(key)
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: StorePut) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            self.steps.step("write", key.row).await;
            self.store.put(key, value, options).await
        })
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            self.steps.step("delete", key.row).await;
            self.store.delete(key, options).await
        })
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        self.store.scan(scan)
    }
    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        self.store.batch(partition, writes)
    }
}

#[derive(Debug, Clone)]
struct StepBucket {
    bucket: Arc<LocalFileSystem>,
    steps: Steps,
}

impl fmt::Display for StepBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bucket.fmt(f)
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = object_store::Result<T>> + Send + 'a>>;

impl ObjectStore for StepBucket {
    fn put_opts<'a, 'b, 'c>(&'a self, to: &'b Path, payload: PutPayload, opts: PutOptions) -> Answer<'c, PutResult>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async move {
            // A folder refuses those with headers, and is asked again.
            if opts.attributes.is_empty() {
                self.steps.step("put", to.as_ref()).await;
                self.steps.puts.lock().unwrap_or_else(PoisonError::into_inner).insert(to.to_string());
            }
            self.bucket.put_opts(to, payload, opts).await
        })
    }

    fn put_multipart_opts<'a, 'b, 'c>(
        &'a self,
        to: &'b Path,
        opts: PutMultipartOptions,
    ) -> Answer<'c, Box<dyn MultipartUpload>>
    where
        'a: 'c,
        'b: 'c,
    {
        self.bucket.put_multipart_opts(to, opts)
    }

    fn get_opts<'a, 'b, 'c>(&'a self, from: &'b Path, options: GetOptions) -> Answer<'c, GetResult>
    where
        'a: 'c,
        'b: 'c,
    {
        self.bucket.get_opts(from, options)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let steps = self.steps.clone();
        let told = paths.then(move |path| {
            let steps = steps.clone();
            async move {
                if let Ok(path) = &path {
                    steps.step("remove", path.as_ref()).await;
                }
                path
            }
        });
        self.bucket.delete_stream(told.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.bucket.list(prefix)
    }

    fn list_with_delimiter<'a, 'b, 'c>(&'a self, prefix: Option<&'b Path>) -> Answer<'c, ListResult>
    where
        'a: 'c,
        'b: 'c,
    {
        self.bucket.list_with_delimiter(prefix)
    }

    fn copy_opts<'a, 'b, 'd, 'c>(&'a self, from: &'b Path, to: &'d Path, options: CopyOptions) -> Answer<'c, ()>
    where
        'a: 'c,
        'b: 'c,
        'd: 'c,
    {
        self.bucket.copy_opts(from, to, options)
    }
}
