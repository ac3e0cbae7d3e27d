"""The names of all metrics, with their labels. Ray puts `ray_` in front of each.

Of requests, told by their agent's replica with vLLM's labels `model_name`, which is the agent, and
`engine`, see connector/metrics.py:

    kvrelay_requests_total{reason}                       requests, by how they ended
    kvrelay_decisions_total{arm,reason}                  and by what was decided at look-up, and why
    kvrelay_fallbacks_total{reason}                      those that were to be relayed and, some or
                                                         all of it, were recomputed after all
    kvrelay_band_requests_total{similarity_band}         requests, by how like a recent one their
                                                         prompt is: `high`, `mid`, `low`, `none`
    kvrelay_band_hits_total{similarity_band}             those that something was relayed for,
    kvrelay_band_relayed_tokens_total{similarity_band}   and how many tokens
    kvrelay_transfer_bytes_total{transport,path,codec}   KV bytes that came
    kvrelay_wire_bytes_total{transport,path,codec}       bytes that went between nodes for them
    kvrelay_transfer_seconds_total{transport,path,codec}    seconds that requests waited for them
    kvrelay_transfer_latency_seconds{transport,path,codec}  the same as a histogram
    kvrelay_predicted_seconds_total{arm}       seconds to the first token as predicted for that arm,
    kvrelay_realised_seconds_total{arm}        and as they were; only of requests that have both
    kvrelay_predicted_latency_seconds{arm}, kvrelay_realised_latency_seconds{arm}  histograms
    kvrelay_predictions_total{outcome}         `made`: an agent was expected after a request;
                                               `right`, `wrong`: whether it came
    kvrelay_ahead_tokens_total                 relayed tokens that had come before anybody asked
    kvrelay_log_dropped_total                  records that are missing in the decision log
    kvrelay_saving_seconds{stratum}            seconds of TTFT that relay saves per request, where
                                               the policy prefers it, as last known with
    kvrelay_saving_lower_seconds{stratum}, kvrelay_saving_upper_seconds{stratum}    an interval,
                                               valid at every look
    kvrelay_saving_requests{stratum}           requests that the estimate under way rests on
    kvrelay_stratum_off{stratum}               1 where relay was seen to lose: off, or on trial

Of a node's store, told by its process, see store_metrics.py; `place` is `arena` or `encoded`:

    kvrelay_store_capacity_bytes{place}    room for blocks
    kvrelay_store_used_bytes{place}        and how much of it is taken
    kvrelay_store_blocks{place}            blocks that can be found
    kvrelay_store_leases                   slots that must stay for now: somebody reads them
    kvrelay_store_evictions_total{place}   blocks that went for good, needed room or not

All labels have few values: a path is told without its interfaces. The seconds stand there twice
since Ray 2.60 makes a histogram anew of the middles of its buckets, so that its `_sum` is no sum.
A stratum is `nodes/512-2k/>=90%`, one of some dozens, or `all`.
"""

REQUESTS = "kvrelay_requests_total"
DECISIONS = "kvrelay_decisions_total"
FALLBACKS = "kvrelay_fallbacks_total"
BAND_REQUESTS = "kvrelay_band_requests_total"
BAND_HITS = "kvrelay_band_hits_total"
BAND_TOKENS = "kvrelay_band_relayed_tokens_total"
TRANSFER_BYTES = "kvrelay_transfer_bytes_total"
WIRE_BYTES = "kvrelay_wire_bytes_total"
TRANSFER_SECONDS = "kvrelay_transfer_seconds_total"
TRANSFER_LATENCY = "kvrelay_transfer_latency_seconds"
PREDICTED_SECONDS = "kvrelay_predicted_seconds_total"
REALISED_SECONDS = "kvrelay_realised_seconds_total"
PREDICTED_LATENCY = "kvrelay_predicted_latency_seconds"
REALISED_LATENCY = "kvrelay_realised_latency_seconds"
PREDICTIONS = "kvrelay_predictions_total"
AHEAD_TOKENS = "kvrelay_ahead_tokens_total"
LOG_DROPPED = "kvrelay_log_dropped_total"
SAVING = "kvrelay_saving_seconds"
SAVING_LOWER = "kvrelay_saving_lower_seconds"
SAVING_UPPER = "kvrelay_saving_upper_seconds"
SAVING_REQUESTS = "kvrelay_saving_requests"
STRATUM_OFF = "kvrelay_stratum_off"

STORE_CAPACITY_BYTES = "kvrelay_store_capacity_bytes"
STORE_USED_BYTES = "kvrelay_store_used_bytes"
STORE_BLOCKS = "kvrelay_store_blocks"
STORE_LEASES = "kvrelay_store_leases"
STORE_EVICTIONS = "kvrelay_store_evictions_total"

WAY_LABELS = ("transport", "path", "codec")
BAND_LABEL = "similarity_band"
