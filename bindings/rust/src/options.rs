//! Options of one collective, and the encryption of connections.

use crate::call::{check, number};
use crate::comm::Comm;
use crate::error::{Error, Result};
use crate::scope::outside_capture;
use capi::nccl::coll_config::{
    ncclCollConfig_t, ncclConfigExt, ncclConfigExtKey_t, ncclConfigExtValue_t,
};
use capi::nccl::config::NCCL_API_MAGIC;
use capi::nccl::encryption::{ncclEncryptionConfig_t, ncclEncryptionMode_t, ncclSetEncryption};
use capi::nccl::info::NCCL_VERSION_CODE;
use capi::nccl::types::{
    NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY, NCCL_CTA_POLICY_ZERO,
};
use capi::oxccl::types::{OXCCL_VENDOR_ID, oxcclCallOption_t, oxcclEvent_t};
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::time::Duration;

/// The policy of a call about thread blocks of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CtaPolicy {
    /// As fast as possible.
    Default,
    /// Few thread blocks.
    Efficiency,
    /// No thread blocks, where copy engines can do the work.
    Zero,
}

/// Options of one collective, for [`Comm::with`]. What is not set is left to the communicator.
///
/// All ranks set the same: where thread blocks, policy or algorithms differ, the calls differ,
/// which is an error on all ranks. Deadline and tag are each rank's own. Either all ranks set an
/// event, each its own, or none does.
///
/// ```
/// # extern crate oxccl_rs as oxccl;
/// # fn main() -> oxccl::Result<()> {
/// # let comm = oxccl::Comm::from_rank(0, 1, oxccl::Id::new()?)?;
/// use oxccl::{CallOptions, ReduceOp};
/// use std::time::Duration;
///
/// let careful = CallOptions::new().deterministic(true).deadline(Duration::from_secs(5));
/// let (mine, mut sum) = ([1.0], [0.0]);
/// comm.with(&careful).all_reduce(&mine, &mut sum, ReduceOp::Sum)?;
/// assert_eq!(sum, [comm.size() as f64]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    algorithms: Option<String>,
    or_automatic: bool,
    plan: Option<String>,
    deterministic: Option<bool>,
    deadline: Option<Duration>,
    min_ctas: Option<usize>,
    max_ctas: Option<usize>,
    nvls_ctas: Option<usize>,
    cga_cluster_size: Option<usize>,
    cta_policy: Option<CtaPolicy>,
    tag: u64,
    /// The handle of the event as a number, so that options can go to other threads; 0 for none.
    event: usize,
}

impl CallOptions {
    /// Returns options that ask for nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the algorithms to choose from, by the names of `oxccl plan` or NCCL's, with commas
    /// between them, such as `"ring,tree"`; `"^ring"` excludes some. The call fails where none of
    /// them serves.
    pub fn algorithms(mut self, names: impl Into<String>) -> Self {
        self.algorithms = Some(names.into());
        self
    }

    /// Lets the library choose where none of the [`algorithms`](Self::algorithms) serves.
    pub fn or_automatic(mut self) -> Self {
        self.or_automatic = true;
        self
    }

    /// Sets the algorithm, by a name of `oxccl plan`, instead of
    /// [`algorithms`](Self::algorithms). The call fails if it does not serve.
    pub fn plan(mut self, name: impl Into<String>) -> Self {
        self.plan = Some(name.into());
        self
    }

    /// Lets only algorithms reduce that always give the same bits; `false` leaves it to the
    /// communicator.
    pub fn deterministic(mut self, on: bool) -> Self {
        self.deterministic = Some(on);
        self
    }

    /// Limits how long the call may wait for another rank, in milliseconds rounded up; then the
    /// communicator fails. The smaller limit holds of this and [`Comm::set_timeout`].
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = Some(limit);
        self
    }

    /// Sets the smallest number of thread blocks on GPUs.
    pub fn min_ctas(mut self, count: usize) -> Self {
        self.min_ctas = Some(count);
        self
    }

    /// Sets the greatest number of thread blocks on GPUs.
    pub fn max_ctas(mut self, count: usize) -> Self {
        self.max_ctas = Some(count);
        self
    }

    /// Sets the number of thread blocks for NVLink multicast. It has no effect: there is none.
    pub fn nvls_ctas(mut self, count: usize) -> Self {
        self.nvls_ctas = Some(count);
        self
    }

    /// Sets the number of thread blocks per cluster. It has no effect: there are no clusters.
    pub fn cga_cluster_size(mut self, size: usize) -> Self {
        self.cga_cluster_size = Some(size);
        self
    }

    /// Sets the policy about thread blocks of GPUs.
    pub fn cta_policy(mut self, policy: CtaPolicy) -> Self {
        self.cta_policy = Some(policy);
        self
    }

    /// Sets the number by which profilers and `oxccl ras` know the call, below 2⁶³; 0 for none.
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// Sets an event that is recorded on the stream of the call, behind the call; null for none.
    /// Either all ranks set one, or none; in a group at most one call of a communicator has one.
    /// Another thread can ask the event whether the call is complete, while the scope of the call
    /// still waits.
    ///
    /// It is an event of [`oxcclEventCreate`](crate::ffi::oxccl::event::oxcclEventCreate); for a
    /// communicator on a GPU it may also be one of CUDA, such as cudarc's `CudaEvent::cu_event`.
    /// [`With::recording`] takes an [`Event`](crate::Event), and is safe.
    ///
    /// # Safety
    /// The event is null, one of `oxcclEventCreate`, or one of CUDA that is alive in all calls with
    /// these options.
    pub unsafe fn launch_completion_event(mut self, event: oxcclEvent_t) -> Self {
        self.event = event.addr();
        self
    }

    /// Calls a function with the options as C has them, which are valid until it returns, and with
    /// an event in place of theirs, unless it is 0.
    fn lend<R>(
        &self,
        event: usize,
        call: impl FnOnce(&ncclCollConfig_t) -> Result<R>,
    ) -> Result<R> {
        let algorithms = text("algorithms", self.algorithms.as_deref())?;
        let plan = text("plan", self.plan.as_deref())?;
        let mut extensions = Vec::with_capacity(3);
        let mut extend = |option: oxcclCallOption_t, val| {
            let key = ncclConfigExtKey_t { vendorId: OXCCL_VENDOR_ID, optionId: option as c_int };
            extensions.push(ncclConfigExt { next: null_mut(), key, val });
        };
        if let Some(limit) = self.deadline {
            let ms = limit.as_nanos().div_ceil(1_000_000);
            let i = c_int::try_from(ms).unwrap_or(c_int::MAX);
            extend(oxcclCallOption_t::oxcclOptionDeadlineMs, ncclConfigExtValue_t { i });
        }
        if let Some(on) = self.deterministic {
            let i = c_int::from(on);
            extend(oxcclCallOption_t::oxcclOptionDeterministic, ncclConfigExtValue_t { i });
        }
        if let Some(plan) = &plan {
            let s = plan.as_ptr();
            extend(oxcclCallOption_t::oxcclOptionPlan, ncclConfigExtValue_t { s });
        }
        let mut ext = null_mut();
        for extension in &mut extensions {
            extension.next = ext;
            ext = extension;
        }
        let mut config = self.fields(ext, algorithms.as_deref().map_or(null(), CStr::as_ptr));
        if event != 0 {
            config.launchCompletionEvent = without_provenance_mut(event);
        }
        call(&config)
    }

    /// Returns C's structure with the list of the library's own options and with a text.
    fn fields(&self, ext: *mut ncclConfigExt, algorithms: *const c_char) -> ncclCollConfig_t {
        let unset = ncclCollConfig_t::default();
        let or = |value: Option<usize>, unset| value.map_or(unset, number);
        // All fields by name, so that a new one is not forgotten.
        ncclCollConfig_t {
            size: unset.size,
            magic: unset.magic,
            version: unset.version,
            ext,
            minCTAs: or(self.min_ctas, unset.minCTAs),
            maxCTAs: or(self.max_ctas, unset.maxCTAs),
            nvlsCTAs: or(self.nvls_ctas, unset.nvlsCTAs),
            cgaClusterSize: or(self.cga_cluster_size, unset.cgaClusterSize),
            algSelection: algorithms,
            forceAlgSelection: c_int::from(!self.or_automatic),
            CTAPolicy: self.cta_policy.map_or(unset.CTAPolicy, |policy| match policy {
                CtaPolicy::Default => NCCL_CTA_POLICY_DEFAULT,
                CtaPolicy::Efficiency => NCCL_CTA_POLICY_EFFICIENCY,
                CtaPolicy::Zero => NCCL_CTA_POLICY_ZERO,
            }),
            userProfilerTag: self.tag,
            launchCompletionEvent: without_provenance_mut(self.event),
        }
    }
}

/// Returns a text for C.
fn text(argument: &str, value: Option<&str>) -> Result<Option<CString>> {
    let wrong = |value: &str| {
        let got = format!("is {value:?}");
        Error::argument("CallOptions", argument, &got, "a text without zeros")
    };
    value.map(|value| CString::new(value).map_err(|_| wrong(value))).transpose()
}

/// A communicator whose calls have options, made by [`Comm::with`]. It has the eight collectives
/// that NCCL gives options, in all forms that [`Comm`] has.
#[derive(Clone, Copy, Debug)]
pub struct With<'comm, 'options> {
    pub(crate) comm: &'comm Comm,
    options: Option<&'options CallOptions>,
    /// The handle of an event that is recorded in place of that of the options; 0 for none.
    event: usize,
}

impl<'comm> With<'comm, '_> {
    /// Returns a communicator whose calls are plain ones.
    pub(crate) fn nothing(comm: &'comm Comm) -> Self {
        Self { comm, options: None, event: 0 }
    }

    /// Records an event, which lives as long as this, behind the calls.
    pub(crate) fn with_event(self, event: usize) -> Self {
        Self { event, ..self }
    }

    /// Fails within a capture if the calls record an event.
    pub(crate) fn refuse_record(self, captured: bool) -> Result<()> {
        outside_capture(captured && self.event != 0, "a call that records an event")
    }

    /// Calls a function with the options for C; with `None` for a plain call.
    pub(crate) fn lend<R>(
        self,
        call: impl FnOnce(Option<&ncclCollConfig_t>) -> Result<R>,
    ) -> Result<R> {
        match self.options {
            None => call(None),
            Some(options) => options.lend(self.event, |config| call(Some(config))),
        }
    }
}

impl Comm {
    /// Returns this communicator with options for the calls that are made with what it returns.
    pub fn with<'options>(&self, options: &'options CallOptions) -> With<'_, 'options> {
        With { comm: self, options: Some(options), event: 0 }
    }
}

/// Encrypts the connections by which communicators are made from now on, with a key of at least 16
/// bytes that all ranks have and nobody can guess; `None` ends that. Only ranks of one host can
/// have encrypted connections. Blocks: never.
pub fn set_encryption(key: Option<&str>) -> Result<()> {
    let wrong = |_| Error::argument("set_encryption", "key", "has a zero", "a text without zeros");
    let key = key.map(CString::new).transpose().map_err(wrong)?;
    let mode = match key {
        Some(_) => ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_PSK,
        None => ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE,
    };
    let config = ncclEncryptionConfig_t {
        size: size_of::<ncclEncryptionConfig_t>(),
        magic: NCCL_API_MAGIC,
        version: NCCL_VERSION_CODE as c_uint,
        mode: mode as c_int,
        psk: key.as_ref().map_or(null(), |key| key.as_ptr()),
    };
    // SAFETY: the structure is complete, and its key ends with a zero.
    check(unsafe { ncclSetEncryption(&config) })
}

#[cfg(test)]
mod tests {
    use super::{CallOptions, CtaPolicy};
    use crate::error::Result;
    use capi::nccl::coll_config::ncclCollConfig_t;
    use capi::nccl::types::NCCL_CTA_POLICY_ZERO;
    use std::ffi::CStr;
    use std::ptr::without_provenance_mut;

    #[test]
    fn every_field_is_an_option() -> Result<()> {
        let event = without_provenance_mut(9);
        let options = CallOptions::new().min_ctas(1).max_ctas(2).nvls_ctas(3).cga_cluster_size(4);
        let options = options.algorithms("ring").or_automatic().cta_policy(CtaPolicy::Zero).tag(5);
        // SAFETY: it is in no call.
        let options = unsafe { options.launch_completion_event(event) };
        options.deterministic(true).lend(0, |config| {
            // Without `..`: a new field does not compile here before it is compared.
            let ncclCollConfig_t {
                size: _,
                magic: _,
                version: _,
                ext,
                minCTAs: 1,
                maxCTAs: 2,
                nvlsCTAs: 3,
                cgaClusterSize: 4,
                algSelection,
                forceAlgSelection: 0,
                CTAPolicy: NCCL_CTA_POLICY_ZERO,
                userProfilerTag: 5,
                launchCompletionEvent,
            } = *config
            else {
                panic!("other fields");
            };
            assert!(!ext.is_null());
            // SAFETY: a text that is valid until this function returns.
            assert_eq!(unsafe { CStr::from_ptr(algSelection) }, c"ring");
            assert_eq!(launchCompletionEvent, event);
            Ok(())
        })
    }
}
