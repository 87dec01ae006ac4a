//! URLs for clouds of which no server runs here: their signatures are computed again by the rules of the clouds' pages, and
//! compared. <https://cloud.google.com/storage/docs/authentication/canonical-requests> and
//! <https://learn.microsoft.com/en-us/rest/api/storageservices/create-service-sas>, both of version 4 of 2021 or later.
use std::sync::Arc;

use aws_lc_rs::{
    digest,
    encoding::{AsDer, Pkcs8V1Der},
    hmac,
    rsa::{KeyPair, KeySize},
    signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use object_store::{ObjectStore, azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder, signer::Signer};
use reqwest::Url;
use steadfast::{
    backend,
    valet_key::{Declared, StoreKind, Ticket, UploadConfig, Uploads},
};

async fn begin<S: ObjectStore + Signer>(bucket: S, kind: StoreKind) -> Ticket {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend::open(&format!("sqlite:{}", folder.path().join("state.db").display())).await.unwrap();
    let config = UploadConfig::default().kind(kind);
    let uploads = Uploads::new(Arc::new(bucket), backend.store(), "inbox", config).unwrap();
    uploads.begin("ada", Declared::new("application/pdf", 8)).await.unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the value of a parameter.
fn parameter(url: &Url, name: &str) -> String {
    url.query_pairs().find(|(key, _)| key == name).unwrap_or_else(|| panic!("no {name} in {url}")).1.into_owned()
}

#[tokio::test]
async fn a_url_for_google_is_signed_with_the_headers_of_its_ticket() {
    let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let pem = BASE64_STANDARD.encode(AsDer::<Pkcs8V1Der>::as_der(&key).unwrap().as_ref());
    let account = format!(
        r#"{{"private_key":"-----BEGIN PRIVATE KEY-----\n{pem}\n-----END PRIVATE KEY-----\n","private_key_id":"1",
            "client_email":"service@example.iam.gserviceaccount.com"}}"#
    );
    let bucket = GoogleCloudStorageBuilder::new().with_bucket_name("scans").with_service_account_key(account).build();
    let ticket = begin(bucket.unwrap(), StoreKind::Gcs).await;

    let url = Url::parse(&ticket.url).unwrap();
    let mut headers = ticket.headers.clone();
    headers.push(("host", url.host_str().unwrap().to_owned()));
    headers.sort_unstable();
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    assert_eq!(names, "content-type;host;x-goog-content-length-range;x-goog-if-generation-match");
    assert_eq!(parameter(&url, "X-Goog-SignedHeaders"), names);
    let mut query: Vec<_> =
        url.query().unwrap().split('&').filter(|pair| !pair.starts_with("X-Goog-Signature=")).collect();
    query.sort_unstable();
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("PUT\n{}\n{}\n{lines}\n{names}\nUNSIGNED-PAYLOAD", url.path(), query.join("&"));
    let (date, credential) = (parameter(&url, "X-Goog-Date"), parameter(&url, "X-Goog-Credential"));
    let (_, scope) = credential.split_once('/').unwrap();
    let digest = hex(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
    let signed = format!("GOOG4-RSA-SHA256\n{date}\n{scope}\n{digest}");
    let signature = parameter(&url, "X-Goog-Signature");
    let bytes: Vec<_> =
        (0..signature.len()).step_by(2).map(|at| u8::from_str_radix(&signature[at..at + 2], 16).unwrap()).collect();
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.public_key());
    public.verify(signed.as_bytes(), &bytes).unwrap_or_else(|_| panic!("another signature is expected for\n{request}"));
}

#[tokio::test]
async fn a_url_for_azure_is_signed_for_one_blob_and_writes_alone() {
    let key = [7; 64];
    let bucket = MicrosoftAzureBuilder::new()
        .with_account("steadfast")
        .with_access_key(BASE64_STANDARD.encode(key))
        .with_container_name("scans")
        .build();
    let ticket = begin(bucket.unwrap(), StoreKind::Azure).await;

    let url = Url::parse(&ticket.url).unwrap();
    let [rights, from, until, version, kind] = ["sp", "st", "se", "sv", "sr"].map(|name| parameter(&url, name));
    assert_eq!((rights.as_str(), kind.as_str()), ("w", "b"));
    let resource = format!("/blob/steadfast{}", url.path());
    // Empty: identifier, addresses, protocol; snapshot, scope of encryption and five headers of answers.
    let signed = format!("{rights}\n{from}\n{until}\n{resource}\n\n\n\n{version}\n{kind}\n\n\n\n\n\n\n");
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    assert_eq!(parameter(&url, "sig"), BASE64_STANDARD.encode(hmac::sign(&key, signed.as_bytes())), "{signed}");
    assert!(ticket.headers.contains(&("x-ms-blob-type", "BlockBlob".to_owned())));
}
