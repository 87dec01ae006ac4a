//! The documents of an issuer: its discovery document, and its key set.
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;

use super::{Issuer, TokenVerifierConfig, event::FetchFailure};
use crate::{
    port::BoxFuture,
    token::{
        jwk::{BadSet, KeySet},
        object,
    },
};

/// The user's function that gets a document, without its types.
pub(super) type Fetch = Arc<dyn Fn(String) -> BoxFuture<'static, Result<Bytes, String>> + Send + Sync>;

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

/// Gets the keys of an issuer.
pub(super) async fn key_set(
    fetch: &Fetch,
    issuer: &Issuer,
    config: &TokenVerifierConfig,
) -> Result<KeySet, FetchFailure> {
    let address = match &issuer.jwks_uri {
        Some(address) => address.clone(),
        None => {
            let document = get(fetch, issuer.discovery(), config.max_document).await?;
            let found: Discovery = object(&document).map_err(|_| FetchFailure::Unparsable)?;
            if found.issuer != issuer.issuer {
                return Err(FetchFailure::OtherIssuer);
            }
            if !issuer.may_have_keys_at(&found.jwks_uri) {
                return Err(FetchFailure::UnsafeAddress);
            }
            found.jwks_uri
        }
    };
    let document = get(fetch, address, config.max_document).await?;
    KeySet::read(&document, config.max_keys).map_err(|bad| match bad {
        BadSet::Unparsable => FetchFailure::Unparsable,
        BadSet::TooManyKeys => FetchFailure::TooLarge,
        BadSet::NoKey => FetchFailure::NoKey,
    })
}

async fn get(fetch: &Fetch, address: String, max: usize) -> Result<Bytes, FetchFailure> {
    let document = fetch(address).await.map_err(FetchFailure::Failed)?;
    if document.len() > max { Err(FetchFailure::TooLarge) } else { Ok(document) }
}
