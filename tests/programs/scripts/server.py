"""One task of a cluster, as a plain server: python server.py JOB TASK '{"ps": ["localhost:2221"], ...}'"""

import json
import sys

import dovetail as tf

job, task, jobs = sys.argv[1:]
cluster = tf.train.ClusterSpec(json.loads(jobs))
server = tf.train.Server(cluster, job_name=job, task_index=int(task))
print("serving", server.target, flush=True)
server.join()
