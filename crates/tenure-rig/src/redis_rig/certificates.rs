//! Certificates for tests of TLS.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

/// A certificate authority and what it signs, as files.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub ca: String,
}

impl Authority {
    pub fn new(directory: &Path, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let ca = directory.join(format!("{name}.crt"));
        std::fs::write(&ca, params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), ca: ca.display().to_string() }
    }

    /// Writes `FILE.crt` and `FILE.key` for these names.
    pub fn sign(&self, directory: &Path, file: &str, names: &[&str], expired: bool) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        if expired {
            (params.not_before, params.not_after) =
                (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let paths = ["crt", "key"].map(|end| directory.join(format!("{file}.{end}")));
        std::fs::write(&paths[0], certificate.pem()).unwrap();
        std::fs::write(&paths[1], key.serialize_pem()).unwrap();
        paths.map(|path| path.display().to_string())
    }
}
