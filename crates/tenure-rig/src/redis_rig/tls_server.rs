//! A server with TLS.

use std::sync::Arc;

use tenure::store::Store;

use super::certificates::Authority;
use super::{Rig, open};
use crate::servers::free_port;

/// A server that speaks TLS on one port, and plaintext on the other for the administrator.
pub struct Secure {
    pub rig: Rig,
    pub port: u16,
}

impl Secure {
    pub fn new(authority: &Authority, [cert, key]: &[String; 2], clients: &str) -> Self {
        let port = free_port();
        let text = port.to_string();
        let mut arguments = vec!["--tls-port", &text, "--tls-auth-clients", clients];
        arguments.extend(["--tls-cert-file", cert, "--tls-key-file", key]);
        arguments.extend(["--tls-ca-cert-file", &authority.ca]);
        Secure { rig: Rig::new(&arguments), port }
    }

    pub async fn open(&self, host: &str, options: &str) -> Arc<dyn Store> {
        open(&format!("rediss://{host}:{}?{options}", self.port)).await
    }
}
