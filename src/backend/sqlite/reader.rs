//! Reading in place, on connections of their own.
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use super::{config::SqliteConfig, failure::failure, schema::open_for_reading};
use crate::port::PortError;

/// Connections for reading, made as they are needed.
pub(super) struct Readers {
    config: SqliteConfig,
    idle: Mutex<Vec<Connection>>,
}

/// So many are kept; more are made where more read at once, and closed after it.
const KEPT: usize = 8;

impl Readers {
    pub(super) fn new(config: SqliteConfig) -> Self {
        Self { config, idle: Mutex::default() }
    }

    /// Reads.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, PortError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => open_for_reading(&self.config)?,
        };
        let result = read(&connection).map_err(failure);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(connection);
        }
        result
    }
}
