//! Uploads to a server of S3's interface that checks signatures: its bytes come by signed URLs, from a client that knows
//! no credentials.
//!
//! `cargo test --locked --manifest-path tests/buckets/Cargo.toml` starts private servers in this process.
#![cfg(test)]
mod clouds;

use std::{sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use reqwest::{Method, StatusCode};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use steadfast::{
    backend::{self, Backend},
    time::Clock,
    valet_key::{Accepted, Declared, Inspection, RejectReason, Ticket, UploadConfig, UploadError, Uploads},
};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};

const BUCKET: &str = "scans";
const BODY: &str = "%PDF-1.7";
/// SHA-256 of the body.
const DIGEST: [u8; 32] = [
    0x86, 0xed, 0xba, 0xa2, 0x48, 0x31, 0xba, 0xdf, 0xa0, 0xa8, 0xb0, 0x4b, 0xb4, 0x10, 0x14, 0x1e, 0x2e, 0xe4, 0x18,
    0x2b, 0x6d, 0x00, 0x14, 0x49, 0x3f, 0xe2, 0x62, 0xa7, 0xa3, 0x31, 0xc2, 0x0b,
];

/// A server with one bucket, and a service whose uploads go there.
struct World {
    uploads: Uploads,
    _backend: Backend,
    _folder: TempDir,
    server: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl World {
    async fn open(config: UploadConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("objects").join(BUCKET)).unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(folder.path().join("objects")).unwrap());
        service.set_auth(SimpleAuth::from_single("steadfast", "a secret of the service"));
        let service = service.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let http = auto::Builder::new(TokioExecutor::new());
                tokio::spawn(http.serve_connection(TokioIo::new(socket), service.clone()).into_owned());
            }
        });
        let bucket: AmazonS3 = AmazonS3Builder::new()
            .with_endpoint(format!("http://{address}"))
            .with_allow_http(true)
            .with_region("eu-central-1")
            .with_bucket_name(BUCKET)
            .with_access_key_id("steadfast")
            .with_secret_access_key("a secret of the service")
            .build()
            .unwrap();
        let backend = backend::open(&format!("sqlite:{}", folder.path().join("state.db").display())).await.unwrap();
        let uploads = Uploads::builder(Arc::new(bucket), backend.store(), "inbox", config)
            .inspect(async |copy| {
                let is_pdf = copy.read().await?.starts_with(b"%PDF-");
                Ok::<_, object_store::Error>(match is_pdf {
                    true => Inspection::Accept,
                    false => Inspection::Reject("no PDF".to_owned()),
                })
            })
            .build()
            .unwrap();
        Self { uploads, _backend: backend, _folder: folder, server }
    }

    async fn begin(&self) -> Ticket {
        self.uploads.begin("ada", Declared::new("application/pdf", BODY.len() as u64).sha256(DIGEST)).await.unwrap()
    }

    async fn complete(&self, ticket: &Ticket) -> Result<Accepted, UploadError> {
        self.uploads.complete(&ticket.id).await
    }
}

/// Sends a request as a client with nothing but a ticket, and returns the status of the answer and the server's code.
async fn send(method: Method, url: &str, headers: &[(&str, String)], body: &'static str) -> (StatusCode, String) {
    let mut request = reqwest::Client::new().request(method, url).body(body);
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let answer = request.send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    (status, code.map(|(code, _)| code.to_owned()).unwrap_or_default())
}

async fn put(ticket: &Ticket, body: &'static str) -> (StatusCode, String) {
    send(Method::PUT, &ticket.url, &ticket.headers, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_by_a_signed_url_is_accepted() {
    let world = World::open(UploadConfig::default()).await;
    let ticket = world.begin().await;
    assert!(matches!(world.complete(&ticket).await, Err(UploadError::NotUploaded)));
    assert_eq!(put(&ticket, BODY).await.0, StatusCode::OK);
    let accepted = world.complete(&ticket).await.unwrap();
    assert_eq!((accepted.bytes, accepted.sha256), (BODY.len() as u64, DIGEST));
    assert_eq!(world.complete(&ticket).await.unwrap(), accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_differs_from_the_declared_one_is_refused() {
    let world = World::open(UploadConfig::default()).await;
    let ticket = world.begin().await;
    for (name, value) in &ticket.headers {
        let others = || ticket.headers.iter().filter(move |(other, _)| other != name).cloned();
        let missing: Vec<_> = others().collect();
        let (status, _) = send(Method::PUT, &ticket.url, &missing, BODY).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "without {name}");
        let changed: Vec<_> = others().chain([(*name, format!("x{value}"))]).collect();
        let (status, code) = send(Method::PUT, &ticket.url, &changed, BODY).await;
        assert!(status.is_client_error(), "{name}: {status} {code}");
    }
    assert!(matches!(world.complete(&ticket).await, Err(UploadError::NotUploaded)));
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_another_digest_are_refused() {
    let world = World::open(UploadConfig::default()).await;
    let ticket = world.begin().await;
    for body in ["%PDF-1.6", "%PDF-1.7 and more", ""] {
        let (status, code) = put(&ticket, body).await;
        assert!(status.is_client_error(), "{body}: {status} {code}");
    }
    // This server may keep an object that it has refused.
    let refused = world.complete(&ticket).await;
    assert!(matches!(&refused, Err(UploadError::NotUploaded | UploadError::Rejected { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_writes_its_object_once() {
    let world = World::open(UploadConfig::default()).await;
    let ticket = world.begin().await;
    assert_eq!(put(&ticket, BODY).await.0, StatusCode::OK);
    assert_eq!(put(&ticket, BODY).await.0, StatusCode::PRECONDITION_FAILED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_does_nothing_but_the_upload_that_it_was_signed_for() {
    let world = World::open(UploadConfig::default()).await;
    let (ticket, other) = (world.begin().await, world.begin().await);
    let id = |ticket: &Ticket| ticket.id.clone();
    let elsewhere = ticket.url.replace(&id(&ticket), &id(&other));
    let accepted_one = ticket.url.replace("incoming/", "copies/");
    let longer = ticket.url.replace("X-Amz-Expires=900", "X-Amz-Expires=90000");
    let unsigned = ticket.url.split_once('?').unwrap().0.to_owned();
    for url in [elsewhere, accepted_one, longer, unsigned] {
        assert_ne!(url, ticket.url);
        let (status, code) = send(Method::PUT, &url, &ticket.headers, BODY).await;
        assert!(status == StatusCode::FORBIDDEN, "{url}: {status} {code}");
    }
    for method in [Method::GET, Method::DELETE, Method::POST] {
        let (status, code) = send(method.clone(), &ticket.url, &ticket.headers, "").await;
        assert!(status.is_client_error(), "{method}: {status} {code}");
    }
    for ticket in [ticket, other] {
        assert!(matches!(world.complete(&ticket).await, Err(UploadError::NotUploaded)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_expires() {
    let world = World::open(UploadConfig::default().url_lifetime(Duration::from_secs(1))).await;
    let ticket = world.begin().await;
    // The server's clock is the machine's, and no clock of ours moves it.
    let clock = Clock::tokio();
    while clock.wall() < ticket.expires_at + Duration::from_secs(1) {
        clock.sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(put(&ticket, BODY).await.0, StatusCode::FORBIDDEN);
    assert!(matches!(world.complete(&ticket).await, Err(UploadError::NotUploaded)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_that_no_digest_binds_is_refused_at_completion() {
    let world = World::open(UploadConfig::default()).await;
    let ticket = world.uploads.begin("ada", Declared::new("application/pdf", BODY.len() as u64)).await.unwrap();
    assert_eq!(put(&ticket, "%PDF-1.7 and more").await.0, StatusCode::OK);
    let refused = world.complete(&ticket).await;
    assert!(matches!(&refused, Err(UploadError::Rejected { reason: RejectReason::Size, .. })), "{refused:?}");
}
