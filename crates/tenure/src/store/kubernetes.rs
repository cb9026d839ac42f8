//! Leases as `coordination.k8s.io/v1` Lease objects of a Kubernetes API server: `kubernetes://NAMESPACE`.
//!
//! One Lease object holds one lease. Its `spec` has the fields that client-go's leader election reads and writes, so that
//! candidates of Tenure and of client-go exclude each other on one object. The rest of the record is in the annotation
//! `tenure/record`. A name that is not a DNS-1123 subdomain is stored under `t-` and the SHA-256 of the name.
//!
//! The API server has no clock that expires a Lease, so a challenger waits until the object has not changed for the
//! *recorded* duration. Every write is a `create`, or an `update` with the resourceVersion and the uid that were last read or
//! written: a challenger that read before a renewal cannot replace the renewed lease.
//!
//! # Permissions
//! `get`, `list`, `watch`, `create` and `update` on `leases` of the group `coordination.k8s.io`, in this namespace.
//! `deploy/kubernetes/rbac.yaml` is this Role.
//!
//! # Options
//! - `context=NAME`: the context of the kubeconfig; otherwise its current context.
//! - `kubeconfig=PATH`: the kubeconfig file; otherwise `KUBECONFIG`, then `~/.kube/config`, then the service account of the pod.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::cas::{Backend, CasStore, Entry, Expiry, Reading, Swap, Swapped};
use super::endpoint::StoreUrl;
use super::{Change, Grade, Limits, Report, Scope, Store};
use crate::clock::Clock;
use crate::error::Result;
use crate::lease::Name;

mod client;
mod error;
mod examine;
mod lease_object;
mod settings;
mod watch;

use client::{ApiClient, Put};
use lease_object::LeaseVersion;
use settings::KubernetesSettings;

/// The number of requests in flight of one handle. The API server limits the requests of all its clients together.
const MAX_IN_FLIGHT: usize = 16;

/// The number of items in one call: a renewal of all of them takes a fraction of the shortest TTL.
const MAX_BATCH: usize = 128;

pub(super) async fn open(url: &StoreUrl<'_>) -> Result<Arc<dyn Store>> {
    let (settings, clock) = (KubernetesSettings::load(url).await?, Clock::boot());
    let backend = KubernetesBackend::new(Arc::new(settings), clock.clone());
    Ok(Arc::new(CasStore::new(backend, clock)))
}

/// The calls of the API server for one namespace.
#[derive(Debug)]
struct KubernetesBackend {
    client: Arc<ApiClient>,
    clock: Clock,
}

impl KubernetesBackend {
    fn new(settings: Arc<KubernetesSettings>, clock: Clock) -> Self {
        KubernetesBackend { client: Arc::new(ApiClient::new(settings, clock.clone())), clock }
    }

    async fn read_one(&self, name: &Name) -> Result<Option<Entry<LeaseVersion>>> {
        match self.client.get(name).await? {
            None => Ok(None),
            Some(object) => lease_object::entry(name, object).map(Some),
        }
    }

    async fn swap_one(&self, swap: &Swap<LeaseVersion>) -> Result<Swapped<LeaseVersion>> {
        let object = lease_object::written(swap, self.clock.minting_micros())?;
        let written = match &swap.expected {
            None => self.client.create(&object).await?,
            Some(_) => self.client.update(&object).await?,
        };
        match written {
            Put::Conflict => Ok(Swapped::Conflict),
            Put::Written(object) => {
                Ok(Swapped::Done { version: LeaseVersion::of(*object)?, counts_from: None })
            }
        }
    }
}

#[async_trait]
impl Backend for KubernetesBackend {
    type Version = LeaseVersion;

    const EXPIRY: Expiry = Expiry::Observation;

    fn limits(&self) -> Limits {
        let mut limits = Limits::new(Grade::A);
        // The fields of a Lease count in whole seconds.
        limits.min_ttl = Duration::from_secs(1);
        limits.max_batch = MAX_BATCH;
        // It would be one more object for every candidate, written at every renewal.
        limits.presence = false;
        limits
    }

    fn url(&self) -> String {
        self.client.settings().url()
    }

    fn detached(&self) -> Self {
        KubernetesBackend::new(self.client.settings(), self.clock.clone())
    }

    async fn read(&self, names: &[Name]) -> Result<Reading<LeaseVersion>> {
        let reads: Vec<_> = names.iter().map(|name| self.read_one(name)).collect();
        let entries = stream::iter(reads).buffered(MAX_IN_FLIGHT).collect().await;
        Ok(Reading { store_time: None, entries })
    }

    async fn swap(
        &self,
        swaps: &[Swap<LeaseVersion>],
    ) -> Result<Vec<Result<Swapped<LeaseVersion>>>> {
        let swaps: Vec<_> = swaps.iter().map(|swap| self.swap_one(swap)).collect();
        Ok(stream::iter(swaps).buffered(MAX_IN_FLIGHT).collect().await)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let (objects, _) = self.client.list(&Scope::Prefix(prefix.to_owned())).await?;
        let names = objects.iter().filter_map(lease_object::name_of);
        Ok(names.filter(|name| name.as_str().starts_with(prefix)).collect())
    }

    async fn read_prefix(
        &self,
        prefix: &str,
    ) -> Option<Result<(Vec<Name>, Reading<LeaseVersion>)>> {
        let objects = match self.client.list(&Scope::Prefix(prefix.to_owned())).await {
            Ok((objects, _)) => objects,
            Err(error) => return Some(Err(error)),
        };
        let (mut names, mut entries) = (Vec::new(), Vec::new());
        for object in objects {
            let name = lease_object::name_of(&object);
            if let Some(name) = name.filter(|name| name.as_str().starts_with(prefix)) {
                entries.push(lease_object::entry(&name, object).map(Some));
                names.push(name);
            }
        }
        Some(Ok((names, Reading { store_time: None, entries })))
    }

    fn changes(&self, scope: &Scope) -> BoxStream<'static, Change> {
        // Its own connections: a watch keeps one busy.
        let client = ApiClient::new(self.client.settings(), self.clock.clone());
        watch::changes(client, self.clock.clone(), scope.clone())
    }

    async fn examine(&self) -> Result<Report> {
        examine::examine(&self.client, &self.clock).await
    }
}
